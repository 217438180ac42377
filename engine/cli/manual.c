/* engine/cli/manual.c - prints --help, the man page and the bash completion.
 *
 * All three are generated from the tables of commands and options, so they agree with the parser.
 * `spillway --man` is the page that make install installs, `spillway --completion` the bash script.  Only the
 * description, the files and the examples are text in this file. */
#include <string.h>

#include "engine/cli/options.h"
#include "engine/cli/text_width.h"

static const char *const about[ENG_COMMAND_COUNT] = {
#define ABOUT(name, text) [ENG_##name] = text,
    ENG_COMMANDS(ABOUT)
#undef ABOUT
};

/* ---- help -------------------------------------------------------------------------------------- */

#define HELP_COLUMN 24 /* where the texts begin */

static const char *const title[ENG_TOPIC_COUNT] = {
#define TITLE(name, text) [ENG_TOPIC_##name] = text,
    ENG_TOPICS(TITLE)
#undef TITLE
};

/* Writes the names and the value of an option: "-n, --n-predict, --predict N"; without `all` only the first short
 * alias and the name. */
static void list_names(const struct eng_option *o, bool all, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (const char *a = o->alias; *a && n < size;) {
        int length = (int)strcspn(a, " ");
        if (all || (n == 0 && a[1] != '-'))
            n += (size_t)snprintf(out + n, size - n, "%.*s, ", length, a);
        a += length + (a[length] == ' ');
    }
    if (n < size)
        snprintf(out + n, size - n, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
}

static void print_option(const struct eng_option *o, const struct eng_config *defaults, bool all)
{
    char names[128], value[64], text[512];
    eng_option_default_text(defaults, o, value, sizeof value);
    list_names(o, all, names, sizeof names);
    snprintf(text, sizeof text, value[0] ? "%s [%s]" : "%s", o->help, value);
    bool own_line = printf("  %s", names) >= HELP_COLUMN;
    printf(own_line ? "\n%*s" : "%*s", own_line ? HELP_COLUMN : HELP_COLUMN - 2 - (int)strlen(names), "");
    eng_print_wrapped(stdout, HELP_COLUMN, HELP_COLUMN, text);
}

/* Prints the command's options of a topic below its title; returns their number. */
static int print_topic(enum eng_command_id command, enum eng_topic topic, const struct eng_config *defaults, bool all)
{
    const struct eng_option *o;
    int n = 0;
    for (int i = 0; (o = eng_option_at(i)); i++) {
        if (!(o->commands & 1u << command) || o->topic != topic)
            continue;
        if (n++ == 0 && title[topic][0])
            printf("\n%s\n", title[topic]);
        print_option(o, defaults, all);
    }
    return n;
}

/* Names the topics of a command that --help leaves out. */
static void print_more(enum eng_command_id command)
{
    char topics[256] = "";
    const struct eng_option *o;
    int n = 0;
    for (int topic = 1; topic < ENG_TOPIC_COUNT; topic++) {
        int before = n;
        for (int i = 0; (o = eng_option_at(i)); i++)
            n += o->commands & 1u << command && (int)o->topic == topic;
        if (n > before)
            snprintf(topics + strlen(topics), sizeof topics - strlen(topics), "%s%c%s", topics[0] ? ", " : "",
                     title[topic][0] | 0x20, title[topic] + 1);
    }
    char text[384];
    snprintf(text, sizeof text, "spillway %s --help-all lists %d more: %s.", eng_command_name[command], n, topics);
    printf("\n");
    eng_print_wrapped(stdout, 0, 0, text);
}

void eng_option_help(enum eng_command_id command, bool all)
{
    struct eng_config defaults;
    const char *flag;
    eng_option_defaults(&defaults, command);
    int at = printf("spillway %s - ", eng_command_name[command]);
    eng_print_wrapped(stdout, at, at, about[command]);
    printf("\nusage: spillway %s", eng_command_name[command]);
    for (int i = 0; (flag = eng_option_needed(command, i)); i++)
        printf(" %s", flag);
    printf(" [flags]\n\n");
    for (int topic = 0; topic < (all ? ENG_TOPIC_COUNT : 1); topic++)
        print_topic(command, (enum eng_topic)topic, &defaults, all);
    if (!all) {
        print_more(command);
        return;
    }
    printf("\nEach flag is also an environment variable (--top-k: " ENG_ENV_PREFIX "TOP_K) and a key of\n"
           "the --config file (top-k = 40).  A flag overrides the variable, which overrides\n"
           "the file.  SIZE: a number with K, M, G or T, which are 1024-based; 4G, 4GB and\n"
           "4GiB are the same.\n");
}

/* ---- the man page ------------------------------------------------------------------------------ */

static const char page_head[] =
    ".TH SPILLWAY 1 \"\" \"Spillway\" \"User Commands\"\n"
    ".SH NAME\n"
    "spillway \\- mixture-of-experts language models larger than the fast memory\n"
    ".SH SYNOPSIS\n"
    ".B spillway\n"
    ".I COMMAND\n"
    "[\\fIflags\\fR]\n"
    ".SH DESCRIPTION\n"
    "Spillway runs mixture-of-experts models on one machine, from GGUF files and from folders\n"
    "of .safetensors as the transformers package writes them.  The weights that every token uses stay in\n"
    "memory; the rest of\n"
    ".B \\-\\-host\\-mem\n"
    "caches experts, and other experts are read from disk when a token needs them.  A request with a seed gives\n"
    "the same bytes whatever other requests run beside it.\n"
    ".PP\n"
    "Results go to standard output, everything else to standard error.\n"
    ".SH COMMANDS\n";

static const char page_tail[] =
    ".SH CONFIGURATION\n"
    "Each flag is also an environment variable\n"
    "(\\fB\\-\\-top\\-k\\fR: \\fBSPILLWAY_TOP_K\\fR) and a key of the file that \\fB\\-\\-config\\fR names\n"
    "(\\fBtop\\-k = 40\\fR, in the command's \\fB[section]\\fR or above all sections).\n"
    "A flag overrides the variable, which overrides the file.\n"
    ".PP\n"
    "\\fBNO_COLOR\\fR turns off the colours of \\fBspillway run\\fR.\n"
    ".SH MODELS BY NAME\n"
    "\\fB\\-m\\fR takes a path or a name: \\fIORG/NAME\\fR[\\fB@\\fIREVISION\\fR][\\fB:\\fIQUANT\\fR] of the Hugging Face\n"
    "hub, or \\fINAME\\fB:\\fITAG\\fR of Ollama.  A path that exists comes first; then the hub's cache, Ollama's store and LM\n"
    "Studio's folder are searched, without a request.  \\fBrun\\fR and \\fBserve\\fR download a model that is in none of them,\n"
    "except with \\fB\\-\\-offline\\fR and under systemd; for the other commands \\fBspillway pull\\fR does.\n"
    ".PP\n"
    "These variables of other tools have the effects that they have there: \\fBHF_HOME\\fR, \\fBHF_HUB_CACHE\\fR,\n"
    "\\fBXDG_CACHE_HOME\\fR, \\fBHF_TOKEN\\fR, \\fBHF_TOKEN_PATH\\fR, \\fBHF_ENDPOINT\\fR, \\fBHF_HUB_OFFLINE\\fR,\n"
    "\\fBOLLAMA_MODELS\\fR, \\fBSSL_CERT_FILE\\fR, \\fBhttps_proxy\\fR.\n"
    ".SH EXIT STATUS\n"
    "0 done, 1 some failed, 2 wrong usage or refused: the last line on standard error gives the reason.\n"
    ".SH FILES\n"
    ".TP\n"
    "\\fB~/.cache/huggingface/hub\\fR\n"
    "downloaded models, shared with other tools of the Hugging Face hub\n"
    ".TP\n"
    "\\fIMODEL\\fB.experts\\fR\n"
    "experts in their memory layout, written by \\fBspillway pack\\fR and used automatically\n"
    ".TP\n"
    "\\fIDIR\\fR of \\fB\\-\\-mirror\\fR\n"
    "copies of the model's files or of \\fIMODEL\\fB.experts\\fR under the same names, whole or only their beginning;\n"
    "both drives are read at once.  A copy is compared with the original at 64 places when it is opened.  It is not\n"
    "used if it differs, or after a failed read; a message reports that\n"
    ".TP\n"
    "\\fIMODEL\\fB.gguf.heat\\fR\n"
    "how often each expert was used; may be deleted\n"
    ".TP\n"
    "\\fIMODEL\\fB.gguf.fit\\fR\n"
    "fitted time of passes, the first estimate of when drafts pay; may be deleted\n"
    ".TP\n"
    "\\fB/etc/spillway/spillway.env\\fR\n"
    "variables of the systemd service\n"
    ".TP\n"
    "\\fB$XDG_STATE_HOME/spillway/history\\fR, \\fB~/.local/state/spillway/history\\fR\n"
    "lines typed into chats of \\fBspillway run\\fR; \\fB\\-\\-no\\-history\\fR writes none\n"
    ".SH EXAMPLES\n"
    ".nf\n"
    "spillway pull ORG/NAME:Q4_K_M\n"
    "spillway plan model.gguf \\-\\-host\\-mem 24G\n"
    "spillway run model.gguf \"Why is the sky blue?\"\n"
    "spillway run model.gguf \\-\\-raw \"Once upon a time\" \\-n 100 \\-\\-seed 1\n"
    "spillway serve model.gguf \\-\\-host\\-mem 24G \\-\\-parallel 16\n"
    "spillway batch \\-m model.gguf requests.jsonl \\-o answers.jsonl\n"
    "SPILLWAY_HOST_MEM=24G spillway bench \\-m model.gguf \\-\\-batch 1,4,16\n"
    ".fi\n";

/* Escapes text for troff: dashes, backslashes and quotes. */
static void put_troff(const char *s)
{
    for (; *s; s++) {
        if (*s == '-')
            fputs("\\-", stdout);
        else if (*s == '\\')
            fputs("\\e", stdout);
        else if (*s == '\'')
            fputs("\\(aq", stdout);
        else
            putchar(*s);
    }
}

/* Prints the names and the value of an option for the man page: \fB-n\fR, \fB--predict\fR \fIN\fR */
static void put_names(const struct eng_option *o)
{
    for (const char *a = o->alias; *a;) {
        int n = (int)strcspn(a, " ");
        char one[ENG_MAX_NAME + 3];
        snprintf(one, sizeof one, "%.*s", n, a);
        fputs("\\fB", stdout);
        put_troff(one);
        fputs("\\fR, ", stdout);
        a += n + (a[n] == ' ');
    }
    fputs("\\fB\\-\\-", stdout);
    put_troff(o->name);
    fputs("\\fR", stdout);
    if (o->value) {
        fputs(" \\fI", stdout);
        put_troff(o->value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
}

/* Prints the commands that accept an option, as lines like "run, bench: default 0.8": commands with the same default
 * share a line. */
static void put_takers(const struct eng_option *o)
{
    bool listed[ENG_COMMAND_COUNT] = { false };
    for (int i = 0; i < ENG_COMMAND_COUNT; i++) {
        struct eng_config defaults;
        char mine[64], other[64];
        if (listed[i] || !(o->commands & 1u << i))
            continue;
        eng_option_defaults(&defaults, (enum eng_command_id)i);
        eng_option_default_text(&defaults, o, mine, sizeof mine);
        fputs(".br\n\\fI", stdout);
        for (int j = i; j < ENG_COMMAND_COUNT; j++) {
            if (!(o->commands & 1u << j))
                continue;
            eng_option_defaults(&defaults, (enum eng_command_id)j);
            eng_option_default_text(&defaults, o, other, sizeof other);
            if (strcmp(mine, other) != 0)
                continue;
            printf("%s%s", j == i ? "" : ", ", eng_command_name[j]);
            listed[j] = true;
        }
        fputs("\\fR", stdout);
        if (mine[0]) {
            fputs(": default ", stdout);
            put_troff(mine);
        }
        putchar('\n');
    }
}

void eng_manual_page(void)
{
    const struct eng_option *o;
    const char *flag;
    fputs(page_head, stdout);
    for (int i = 0; i < ENG_COMMAND_COUNT; i++) {
        printf(".TP\n\\fBspillway %s\\fR", eng_command_name[i]);
        for (int k = 0; (flag = eng_option_needed((enum eng_command_id)i, k)); k++) {
            putchar(' ');
            put_troff(flag);
        }
        putchar('\n');
        put_troff(about[i]);
        putchar('\n');
    }
    fputs(".SH OPTIONS\nBelow each option are the commands that take it.  SIZE is a number with K, M, G or T, which\n"
          "are 1024-based; 4G, 4GB and 4GiB are the same.\n"
          ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nthe common flags of a command\n"
          ".TP\n\\fB\\-\\-help\\-all\\fR\nall flags of a command\n",
          stdout);
    for (int i = 0; (o = eng_option_at(i)); i++) {
        fputs(".TP\n", stdout);
        put_names(o);
        put_troff(o->help);
        putchar('\n');
        put_takers(o);
    }
    fputs(page_tail, stdout);
}

/* ---- completion -------------------------------------------------------------------------------- */

static void put_flags(const struct eng_option *o) { printf(" --%s%s%s", o->name, o->alias[0] ? " " : "", o->alias); }

static bool takes_file(const struct eng_option *o) { return o->value && !strcmp(o->value, "FILE"); }

/* Prints a line for an option with a fixed list of values: --kv) words='f16 f32' ;; */
static void put_choices(const struct eng_option *o)
{
    const char *const *choice = eng_option_choices(o);
    if (!choice)
        return;
    printf("    --%s) words='", o->name);
    for (int i = 0; choice[i]; i++)
        printf("%s%s", i ? " " : "", choice[i]);
    printf("' ;;\n");
}

static void put_command(enum eng_command_id command)
{
    const struct eng_option *o;
    printf("    %s)\n        flags='--help --help-all", eng_command_name[command]);
    for (int i = 0; (o = eng_option_at(i)); i++)
        if (o->commands & 1u << command)
            put_flags(o);
    printf("'\n        files='");
    for (int i = 0; (o = eng_option_at(i)); i++)
        if (o->commands & 1u << command && takes_file(o))
            put_flags(o);
    printf(" '\n        values='");
    for (int i = 0; (o = eng_option_at(i)); i++)
        if (o->commands & 1u << command && o->value && !takes_file(o))
            put_flags(o);
    printf(" ' ;;\n");
}

void eng_manual_completion(void)
{
    const struct eng_option *o;
    printf("# bash completion for spillway, written by spillway --completion\n"
           "_spillway()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local flags='' files='' values='' words=''\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words='");
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        printf("%s ", eng_command_name[i]);
    printf("--help --version'\n        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n        return\n    fi\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        put_command((enum eng_command_id)i);
    printf("    esac\n    case $before in\n");
    for (int i = 0; (o = eng_option_at(i)); i++)
        put_choices(o);
    printf("    *) case $files in *\" $before \"*) compopt -o default; return ;; esac\n"
           "       case $values in *\" $before \"*) return ;; esac\n"
           "       case $word in -*) words=$flags ;; *) compopt -o default; return ;; esac ;;\n"
           "    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "}\n"
           "complete -F _spillway spillway\n");
}
