/* engine/serve/multipart.h - bodies of type multipart/form-data, as forms and HTTP clients send files.  Internal to engine.
 *
 *     eng_multipart_open, with the request's Content-Type -> eng_multipart_take over the arriving bytes until END
 *
 * Pure: no socket, no file, no allocation.  The bytes may come in any pieces.
 *
 * Strict, by RFC 2046 and RFC 7578: the body begins with the first delimiter and ends with the last one; every part has
 * one Content-Disposition: form-data with a name; a part is not encoded (Content-Transfer-Encoding other than 7bit, 8bit
 * and binary is refused).  The names that a client gives are data, never paths. */
#ifndef ENGINE_SERVE_MULTIPART_H
#define ENGINE_SERVE_MULTIPART_H

#include "kernels/core.h"

#define ENG_MULTIPART_HEAD_BYTES 4096 /* header lines of a part, at most */
#define ENG_MULTIPART_NAME_BYTES 256  /* of a name and of a file name, with a NUL, at most */
#define ENG_MULTIPART_PARTS      16   /* of a body, at most */

/* name, message to the client */
#define ENG_MULTIPART_FAULTS(X)                                                                                        \
    X(TYPE, "the content type is not multipart/form-data with a boundary")                                             \
    X(DELIMITER, "the multipart body does not begin with its boundary, or a boundary line is not valid")               \
    X(HEAD, "a part's header line is not NAME: VALUE")                                                                 \
    X(HEAD_LONG, "the header lines of a part are too long")                                                            \
    X(DISPOSITION, "a part has no Content-Disposition: form-data with a name")                                         \
    X(NAME_LONG, "the name of a part or of a file is too long")                                                        \
    X(CODING, "a part has a Content-Transfer-Encoding: send its bytes as they are")                                    \
    X(PARTS_MANY, "the multipart body has too many parts")                                                             \
    X(AFTER, "bytes follow the end of the multipart body")

enum eng_multipart_fault {
    ENG_MULTIPART_OK,
#define ENG_ENUM(name, text) ENG_MULTIPART_##name,
    ENG_MULTIPART_FAULTS(ENG_ENUM)
#undef ENG_ENUM
};

const char *eng_multipart_fault_text(enum eng_multipart_fault f);

/* NONE: all bytes are taken, more are needed.  PART: a part begins; its name is known.  DATA: bytes of its content.  END:
 * the body is complete; further bytes are a fault. */
enum eng_multipart_event { ENG_MULTIPART_NONE, ENG_MULTIPART_PART, ENG_MULTIPART_DATA, ENG_MULTIPART_END };

struct eng_multipart {
    char delimiter[76]; /* CR LF - - boundary */
    size_t n_delimiter;
    int state, n_part;
    size_t n_matched; /* bytes of the delimiter that the last bytes equal */
    char head[ENG_MULTIPART_HEAD_BYTES];
    size_t n_head;
    /* Of the part that has begun, with NUL.  is_file: it has a file name, which may be empty. */
    char name[ENG_MULTIPART_NAME_BYTES], file_name[ENG_MULTIPART_NAME_BYTES];
    bool is_file;
};

/* type: the value of Content-Type, or NULL. */
enum eng_multipart_fault eng_multipart_open(struct eng_multipart *m, const char *type);

/* Takes bytes up to the next event and returns their number.  DATA: *data, [*n_data], which points into p or into m and is
 * not empty.  After a fault m must not be used. */
size_t eng_multipart_take(struct eng_multipart *m, const char *p, size_t n, enum eng_multipart_event *event,
                          const char **data, size_t *n_data, enum eng_multipart_fault *fault);

#endif
