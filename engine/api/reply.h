/* engine/api/reply.h - tokens back to the bytes of an answer.  Internal to engine.
 *
 *     eng_reply_open -> [ eng_reply_feed, eng_reply_take ]* -> eng_reply_close
 *
 * A reply is fed the tokens of all choices of one ask, in any company, and appends bytes to be
 * sent: for a stream whole server-sent events as soon as text is certain (whole characters, and
 * nothing that may still become a stop string or the mark of a tool call), otherwise the whole body
 * once the last choice is done.  The caller drains them when he likes.
 *
 * Nothing is appended before the first token, so that until eng_reply_began() a failure can still
 * be told with its HTTP status; afterwards a stream ends with an error event.
 *
 * How it is made: a choice's tokens become text (eng_decoder), the text thoughts, content and calls
 * (speech.h), content ends at a stop string (eng_stop), and what is left goes to one of four
 * writers, one per dialect, as the same few events (dialect.h).  After KN_ENOMEM an answer has a
 * hole, and is to be dropped.
 *
 * Belongs to one thread at a time; ask and desk outlive it. */
#ifndef ENGINE_SERVE_REPLY_H
#define ENGINE_SERVE_REPLY_H

#include "engine/api/request.h"

struct eng_reply;

int eng_reply_open(struct eng_reply **out, const struct eng_ask *ask, const struct eng_api_setup *desk);
void eng_reply_close(struct eng_reply *r);

/* An event of the choice event->choice; its n_cached is for the usage.  Returns 0: go on; 1: this
 * choice needs no more (its session may be stopped, and what still comes from it is passed over);
 * or KN_ENOMEM. */
int eng_reply_feed(struct eng_reply *r, const struct eng_event *event);

/* The stream begins now, before there is a token: for a caller who has to send something while a
 * long prompt is read.  What goes wrong from here on is an event.  Nothing where there is no
 * stream. */
void eng_reply_begin(struct eng_reply *r);

/* Ends all of it with an error: an event in a stream that has begun, else the body. */
void eng_reply_fail(struct eng_reply *r, const struct eng_refusal *why);

bool eng_reply_began(const struct eng_reply *r);       /* there have been bytes */
bool eng_reply_done(const struct eng_reply *r);        /* there will be no more */
int eng_reply_status(const struct eng_reply *r);       /* of HTTP: 200, or the refusal's */
const char *eng_reply_type(const struct eng_reply *r); /* Content-Type */

/* The bytes since the last take: *n of them, valid until the next call with r. */
const char *eng_reply_take(struct eng_reply *r, size_t *n);

/* For logs and metrics: tokens fed so far, and why the choice ended ("stop", "length",
 * "tool_calls", "error"), NULL while it goes on. */
int eng_reply_tokens(const struct eng_reply *r, int choice);
const char *eng_reply_finish(const struct eng_reply *r, int choice);

/* The whole body of an answer that only counts the prompt: {"input_tokens": ...}. */
void eng_reply_count(struct eng_bytes *out, const struct eng_ask *ask);

#endif
