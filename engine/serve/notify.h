/* engine/serve/notify.h - messages to the service manager (systemd).  Internal to engine. */
#ifndef ENGINE_SERVE_NOTIFY_H
#define ENGINE_SERVE_NOTIFY_H

/* Sends one datagram ("READY=1", "WATCHDOG=1" ...) to the socket at a path, or at @name in the abstract namespace.
 * socket_path NULL: no service manager; does nothing.  Errors are ignored. */
void eng_notify(const char *socket_path, const char *line);

#endif
