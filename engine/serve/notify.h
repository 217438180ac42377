/* engine/serve/notify.h - a line to the service manager that started us.  Internal to engine. */
#ifndef ENGINE_SERVE_NOTIFY_H
#define ENGINE_SERVE_NOTIFY_H

/* One datagram ("READY=1", "WATCHDOG=1" ...) to a socket by path, or by @name in the abstract space; NULL:
 * there is no manager.  It cannot fail in a way that anybody could do something about. */
void eng_notify(const char *socket_path, const char *line);

#endif
