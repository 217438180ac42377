/* engine/api/reply.h - turns generated tokens into the bytes of an HTTP answer.  Internal to engine.
 *
 *     eng_reply_open -> [ eng_reply_feed, eng_reply_take ]* -> eng_reply_close
 *
 * The caller feeds the tokens of all choices of one request, interleaved in any order.  The reply
 * appends the bytes to send to a buffer.  For a stream the bytes are complete server-sent events (for Ollama's paths,
 * JSON lines), written as soon as their text is certain: whole characters that cannot become part of a stop string or of a tool
 * call's marker.  Without a stream the bytes are the whole body, written after the last choice has ended.  The
 * caller may take the bytes at any time.
 *
 * No bytes are written before the first token or eng_reply_begin().  So while eng_reply_began() is
 * false a failure is reported by its HTTP status; later a stream ends with an error event.
 *
 * Tokens of a choice become text (eng_decoder); the text becomes reasoning, content and calls
 * (tools.h); the content ends at a stop string (eng_stop); the writer of the request's dialect formats
 * the resulting events (dialect.h).  After KN_ENOMEM the answer is incomplete: the caller can only close the reply, or
 * fail it, which removes the incomplete bytes and writes the error.
 *
 * A reply belongs to one thread at a time; ask and setup must outlive it. */
#ifndef ENGINE_API_REPLY_H
#define ENGINE_API_REPLY_H

#include "engine/api/request.h"

struct eng_reply;

int eng_reply_open(struct eng_reply **out, const struct eng_api_request *ask, const struct eng_api_setup *setup);
void eng_reply_close(struct eng_reply *r);

/* Processes an event of the choice event->choice; event->n_cached is reported in the usage.  Returns 0
 * to continue; 1 if the choice has ended (the caller may stop its session; later events of the choice
 * are ignored); or KN_ENOMEM. */
int eng_reply_feed(struct eng_reply *r, const struct eng_event *event);

/* Begins the stream before the first token, for a caller that must send bytes during a long prefill.
 * Failures after this call are events of the stream.  Does nothing if the request has no stream. */
void eng_reply_begin(struct eng_reply *r);

/* Ends the whole answer with an error: an event if the stream has begun, otherwise the body. */
void eng_reply_fail(struct eng_reply *r, const struct eng_refusal *why);

bool eng_reply_began(const struct eng_reply *r);          /* a stream was begun, or the body written */
bool eng_reply_takes_comments(const struct eng_reply *r); /* a stream of server-sent events, not of JSON lines */
bool eng_reply_done(const struct eng_reply *r);           /* no more bytes will be written */
int eng_reply_status(const struct eng_reply *r);          /* HTTP status: 200, or the refusal's */
const char *eng_reply_type(const struct eng_reply *r);    /* Content-Type */

/* The *n bytes written since the last take, valid until the next call with r; without incomplete events. */
const char *eng_reply_take(struct eng_reply *r, size_t *n);

/* Writes the sampling parameters as the object that llama-server reports. */
void eng_write_settings(struct eng_bytes *out, const struct spec_params *s, int n_predict);

/* For logs and metrics: the number of tokens generated so far, and the reason why the choice ended
 * ("stop", "length", "tool_calls", "error"; NULL while the choice is running). */
int eng_reply_tokens(const struct eng_reply *r, int choice);
const char *eng_reply_finish(const struct eng_reply *r, int choice);

/* Writes the body of the answer to a request with nothing to answer: the model is loaded. */
void eng_reply_nothing(struct eng_bytes *out, const struct eng_api_request *ask);

/* Writes the body of an answer that only counts the prompt's tokens: {"input_tokens": ...}. */
void eng_reply_count(struct eng_bytes *out, const struct eng_api_request *ask);

#endif
