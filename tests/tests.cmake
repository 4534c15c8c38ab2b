# tests.cmake: the tests and examples.  Included by CMakeLists.txt, so paths begin at the root of the tree.

# Run by `make check`, in at most 4 minutes on 2 cores with the build; all others by `make check-all`.  A test belongs
# here if it guards something that a user meets and takes at most a few seconds.
set(natgrad_quick_tests
    cli_arguments cli_compare cli_environment cli_export cli_options_in_sync cli_replay_golden
    cli_train example_00_hello example_10_digits_mlp example_20_three_layers
    example_30_cpp exports fuzz_options fuzz_safetensors fuzz_state header house python_core
    python_front_torch1 python_front_torch2 readme rooms sizes t_alloc t_arguments t_bindings
    standin_t_clip standin_t_norm standin_t_rankone standin_t_stages t_comm t_context t_convert t_data
    t_describe t_eigen t_engine t_golden t_linalg t_models t_nn t_nn_forward t_norm t_options t_oracle t_properties t_published t_rankone t_rows
    t_settings t_state t_sym t_train t_vector t_window_golden)

# cmocka gives each test `state`, and a table of functions gives each entry arguments; few read all.
add_compile_options(-Wno-unused-parameter)

# Registers a test; every test finds the tree, the build and the program in its environment, runs
# in the build folder and may say "skipped" with 77.
set(natgrad_test_launcher "")
if(NATGRAD_HAVE_MPI AND MPIEXEC_EXECUTABLE)
  set(natgrad_test_launcher "NG_TEST_MPIRUN=${MPIEXEC_EXECUTABLE}")
endif()
# The Makefile sets the time limit of a test, in proportion to the load; TIMEOUT replaces it.
function(natgrad_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT" "COMMAND")
  if(name IN_LIST natgrad_quick_tests)
    list(APPEND arg_LABEL quick)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  # The threads of OpenBLAS wait for each other in a loop: on a busy machine a small product takes milliseconds.  Unit
  # tests but those of the linear algebra have one thread, and long tests of the program.
  set(blas_threads)
  if((arg_LABEL MATCHES unit AND NOT name MATCHES "^t_(linalg|eigen|sym)") OR name MATCHES "^cli_(compare|images|resume)$")
    set(blas_threads ";OPENBLAS_NUM_THREADS=1")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" SKIP_RETURN_CODE 77
    ENVIRONMENT "NG_TEST_SOURCE_DIR=${PROJECT_SOURCE_DIR};NG_TEST_BUILD_DIR=${PROJECT_BINARY_DIR};NG_TEST_PROGRAM=$<TARGET_FILE:natgrad_cli>;${natgrad_test_launcher}${blas_threads}")
  if(arg_TIMEOUT)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT})
  endif()
endfunction()

# Programs, tests/NAME.c each, on the static library: they may look inside the rooms.  One name a line, in order.
set(natgrad_unit_tests
    t_alloc
    t_arguments
    t_arrays
    t_assign
    t_axes
    t_bf16
    t_bindings
    t_clip
    t_comm
    t_comm_faults
    t_context
    t_convert
    t_crc
    t_cuda
    t_cuda_blas
    t_cuda_eva
    t_cuda_solve
    t_cuda_state
    t_curvature
    t_curvature_layers
    t_describe
    t_eigen
    t_engine
    t_factor_files
    t_family
    t_family_calls
    t_ekfac
    t_family_matrix
    t_finite
    t_finite_norm
    t_fisher
    t_fork
    t_gather
    t_golden
    t_gradient_rows
    t_groups
    t_groups_ranks
    t_huge
    t_idle
    t_json
    t_kernels_copy
    t_kernels_emit
    t_kernels_gram
    t_kernels_largest
    t_kernels_measure
    t_kernels_norm
    t_kernels_window
    t_ladder
    t_last
    t_left_out
    t_linalg
    t_linalg_long
    t_norm
    t_npy
    t_option_effects
    t_options
    t_options_check
    t_options_object
    t_oracle
    t_overhead
    t_overlap
    t_parts
    t_parts_faults
    t_parts_forged
    t_parts_sweep
    t_glob
    t_placements
    t_plan
    t_plan_places
    t_plan_shards
    t_pool
    t_properties
    t_properties_data
    t_properties_life
    t_published
    t_quantify
    t_queue
    t_quotes
    t_rankone
    t_reports
    t_rows
    t_safetensors_read
    t_safetensors_write
    t_same
    t_shards
    t_shards_faults
    t_shards_state
    t_shared_batch
    t_sizes
    t_stages
    t_stale
    t_stale_walks
    t_standin
    t_state
    t_state_faults
    t_state_growth
    t_state_refused
    t_state_stream
    t_strides
    t_sym
    t_to_owner
    t_twosided
    t_unobserved
    t_vector
    t_window
    t_window_digits
    t_window_golden
    t_window_kernels
    t_window_layers
    t_window_out
    t_window_ranks
    t_window_state
    t_window_stores
    )

# Shared by several tests; an archive, so that each links only the files that it calls.
set(natgrad_test_support_sources
    tests/dense.c
    tests/families.c
    tests/families_cases.c
    tests/fixture.c
    tests/folder.c
    tests/late.c
    tests/late_kernels.c
    tests/late_memory.c
    tests/layer_oracle.c
    tests/oracle.c
    tests/oracle_geometry.c
    tests/oracle_spatial.c
    tests/plan_count.c
    tests/plane.c
    tests/ranks.c
    tests/test_case.c
    tests/test_case_run.c
    tests/shard_run.c
    tests/sim.c
    tests/state_help.c
    tests/json_edit.c
    tests/stream.c
    tests/strided.c
    tests/tap.c
    tests/transports.c
    tests/window_oracle.c)

add_library(natgrad_test_support STATIC ${natgrad_test_support_sources})
target_include_directories(natgrad_test_support PRIVATE include src base io tests)
target_link_libraries(natgrad_test_support PRIVATE PkgConfig::CMOCKA)
foreach(test IN LISTS natgrad_unit_tests)
  add_executable(${test} tests/${test}.c)
  target_include_directories(${test} PRIVATE include src base io tests)
  target_compile_definitions(${test} PRIVATE NG_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${test} PRIVATE natgrad_test_support natgrad_static ${natgrad_needs}
                        PkgConfig::CMOCKA)
  natgrad_test(${test} LABEL unit COMMAND ${test})
endforeach()
# Helpers of a few tests: natgrad_share(FILE TEST...) compiles tests/FILE.c into each.
function(natgrad_share file)
  foreach(test IN LISTS ARGN)
    target_sources(${test} PRIVATE tests/${file}.c)
  endforeach()
endfunction()
natgrad_share(cuda_model t_cuda t_cuda_eva t_cuda_state)
natgrad_share(bound t_bindings t_left_out)
natgrad_share(effects t_option_effects)
# Kernels of a device, on the stand-in of standin.c. bench/gpu.sh runs them on a GPU.
set(natgrad_standin_sources tests/standin.c tests/standin_blas.c tests/standin_desk.c)
add_library(natgrad_device_objects OBJECT ${natgrad_cuda_sources} ${natgrad_standin_sources} tests/kernels.c)
target_include_directories(natgrad_device_objects PRIVATE include src base cuda tests)
target_link_libraries(natgrad_device_objects PRIVATE PkgConfig::CMOCKA)
target_compile_definitions(natgrad_device_objects PRIVATE DV_PACKED=512)
foreach(test t_axes t_bf16 t_cuda t_cuda_eva t_cuda_solve t_cuda_state t_eigen t_kernels_copy t_kernels_emit t_kernels_gram t_kernels_measure t_kernels_norm t_kernels_window t_linalg
             t_linalg_long t_rows t_strides t_sym t_twosided t_vector)
  target_sources(${test} PRIVATE $<TARGET_OBJECTS:natgrad_device_objects>)
  target_include_directories(${test} PRIVATE cuda)
endforeach()
target_sources(t_standin PRIVATE ${natgrad_standin_sources})
target_include_directories(t_standin PRIVATE cuda)
# Calls of cuBLAS and cuSOLVER, by libraries with functions of their names.
add_library(natgrad_cuda_blas OBJECT cuda/blas_cuda.c)
target_include_directories(natgrad_cuda_blas PRIVATE cuda)
foreach(name blas_open blas_close gemm syrk symm trsm work_bytes potrf potri syevd batch_bytes syevd_batch qr)
  target_compile_definitions(natgrad_cuda_blas PRIVATE dv_${name}=cuda_${name})
endforeach()
target_sources(t_cuda_blas PRIVATE ${natgrad_standin_sources} $<TARGET_OBJECTS:natgrad_cuda_blas>)
target_include_directories(t_cuda_blas PRIVATE cuda)
target_compile_definitions(t_cuda_blas PRIVATE FAKE_CUDA_FOLDER="${PROJECT_BINARY_DIR}/fake_cuda")
set_target_properties(t_cuda_blas PROPERTIES ENABLE_EXPORTS ON C_VISIBILITY_PRESET default)
foreach(library libcublas.so.13 libcusolver.so.12)
  add_library(fake_${library} MODULE tests/fake_cuda.c)
  target_include_directories(fake_${library} PRIVATE cuda)
  target_compile_options(fake_${library} PRIVATE -Wno-missing-prototypes -fvisibility=default)
  set_target_properties(fake_${library} PROPERTIES PREFIX "" OUTPUT_NAME ${library} SUFFIX "" C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cuda)
  add_dependencies(t_cuda_blas fake_${library})
endforeach()
# The library natgrad_cuda with the stand-in: NG_CUDA_LIBRARY is its path, NG_LINALG=cuda.
add_library(natgrad_standin MODULE ${natgrad_cuda_sources} ${natgrad_cuda_shared} ${natgrad_standin_sources})
target_include_directories(natgrad_standin PRIVATE include src base cuda tests)
target_link_libraries(natgrad_standin PRIVATE m)
target_link_options(natgrad_standin PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/natgrad.map -Wl,-z,defs)
add_dependencies(t_context natgrad_standin natgrad)
target_compile_definitions(t_context PRIVATE NG_TEST_CUDA_LIBRARY="$<TARGET_FILE:natgrad_standin>" NG_TEST_OTHER_LIBRARY="$<TARGET_FILE:natgrad>")
# Families, updates, ranks, states once more on the stand-in: a tenth of the random cases and of the rows of properties, of a seed
# (NG_TEST_SEED); with a sanitizer three tests. All: NG_LINALG=cuda NG_CUDA_LIBRARY=.../libnatgrad_standin.so t_properties.
# Kernels and linear algebra run on the stand-in in their own tests (above). Others that open a context are not here:
#   t_arrays            expects equal bits in all layouts; on a device SGD on dense f32 rows is in f32 (docs/cuda.md)
#   t_context           has contexts without a device, and with the stand-in
#   t_engine            expects refused arrays, some of which the stand-in can access
#   t_gradient_rows     the host decides, so a device does not use gradient_rows
#   t_alloc, t_fork     count memory and processes of the host
#   t_family, t_golden, t_last, t_placements, t_same, t_to_owner, t_kernels_*, t_linalg ...    name their backends
#   t_bindings, t_curvature_layers, t_finite_norm, t_groups, t_huge, t_idle, t_option_effects, t_quantify, t_shared_batch,
#   t_window_ranks      more than 8 s each on fibers; t_properties* have their subjects
set(natgrad_standin_sample t_clip t_norm t_rankone t_stages)
set(natgrad_standin_tests ${natgrad_standin_sample} t_curvature t_ekfac t_family_calls t_family_matrix t_finite t_fisher t_gather
    t_groups_ranks t_left_out t_oracle t_properties t_properties_data t_properties_life t_shards t_stale t_state t_window
    t_window_layers t_window_state)
set(natgrad_standin_share 0.1)
if(NATGRAD_SANITIZE)
  set(natgrad_standin_tests ${natgrad_standin_sample})
  set(natgrad_standin_share 0.02)
endif()
foreach(test IN LISTS natgrad_standin_tests)
  natgrad_test(standin_${test} LABEL unit COMMAND ${test})
  add_dependencies(${test} natgrad_standin)
  set_property(TEST standin_${test} APPEND PROPERTY ENVIRONMENT NG_LINALG=cuda NG_CUDA_LIBRARY=$<TARGET_FILE:natgrad_standin>
               NG_TEST_MULT=${natgrad_standin_share})
endforeach()
# The stand-in and the backend with sanitizers, while the library has none, in two minutes. The test builds these programs, so that
# `make` is not slower. NG_TEST_SEED is the seed. t_kernels_gram takes minutes.
if(NOT NATGRAD_SANITIZE)
  set(natgrad_sanitized_tests t_standin t_cuda_solve t_kernels_copy)
  foreach(kind address thread)
    add_library(natgrad_${kind} OBJECT EXCLUDE_FROM_ALL ${natgrad_cuda_sources} ${natgrad_standin_sources} tests/kernels.c)
    target_include_directories(natgrad_${kind} PRIVATE include src base cuda tests)
    target_link_libraries(natgrad_${kind} PRIVATE PkgConfig::CMOCKA)
    target_compile_definitions(natgrad_${kind} PRIVATE DV_PACKED=512)
    target_compile_options(natgrad_${kind} PRIVATE -O1 -fsanitize=${kind})
    foreach(test IN LISTS natgrad_sanitized_tests)
      set(program ${test}_${kind})
      add_executable(${program} EXCLUDE_FROM_ALL tests/${test}.c tests/linalg_check.c $<TARGET_OBJECTS:natgrad_${kind}>)
      target_include_directories(${program} PRIVATE include src base cuda tests)
      target_compile_options(${program} PRIVATE -O1 -fsanitize=${kind})
      target_link_options(${program} PRIVATE -fsanitize=${kind})
      target_link_libraries(${program} PRIVATE natgrad_test_support natgrad_static ${natgrad_needs} PkgConfig::CMOCKA)
      list(APPEND natgrad_sanitized ${program})
    endforeach()
  endforeach()
  natgrad_test(standin_sanitized LABEL unit COMMAND ${PROJECT_SOURCE_DIR}/tests/standin_sanitized.sh ${natgrad_sanitized})
  set_property(TEST standin_sanitized APPEND PROPERTY ENVIRONMENT NG_TEST_MULT=0.1)
endif()
add_executable(gpu_eva bench/gpu_eva.c ${natgrad_standin_sources})
target_include_directories(gpu_eva PRIVATE cuda tests)
target_link_libraries(gpu_eva PRIVATE m)
natgrad_share(directions t_kernels_emit t_kernels_measure)
natgrad_share(io_check t_npy t_safetensors_read t_safetensors_write)
natgrad_share(linalg_check t_axes t_bf16 t_cuda_solve t_eigen t_linalg t_linalg_long t_rows t_sym t_twosided t_vector)
natgrad_share(misuse t_describe t_engine)
natgrad_share(pictures t_kernels_gram)
natgrad_share(huge_model t_finite t_huge)
natgrad_share(toys t_family t_family_calls t_left_out)
natgrad_share(family_run t_family t_family_calls t_family_matrix)
# Over MPI once more: the contract of transports, published numbers of several ranks, shared batches.
set(natgrad_mpi_tests t_comm t_comm_faults t_golden t_placements t_properties_life t_shared_batch t_shards t_to_owner t_stages t_mpi_leave t_same)
if(NATGRAD_HAVE_MPI)
  add_library(natgrad_mpi_support STATIC ${natgrad_test_support_sources} tests/mpi_sleep.c src/comm/mpi.c src/comm/mpi_op.c src/comm/mpi_leave.c)
  target_include_directories(natgrad_mpi_support PRIVATE include src base io)
  target_compile_definitions(natgrad_mpi_support PRIVATE NG_TEST_MPI)
  target_link_libraries(natgrad_mpi_support PUBLIC PkgConfig::CMOCKA MPI::MPI_C)
endif()
foreach(test IN LISTS natgrad_mpi_tests)
  if(NATGRAD_HAVE_MPI)
    add_executable(${test}_mpi tests/${test}.c)
    target_include_directories(${test}_mpi PRIVATE include src base io tests)
    target_compile_definitions(${test}_mpi PRIVATE NG_TEST_MPI)
    target_compile_options(${test}_mpi PRIVATE -Wno-unused-function -Wno-unused-const-variable) # tests of threads alone
    target_link_libraries(${test}_mpi PRIVATE natgrad_mpi_support natgrad_static ${natgrad_needs})
  endif()
  foreach(ranks 2 3 4)
    if((ranks EQUAL 3 AND NOT test MATCHES "t_comm|t_mpi_|t_same") OR (NOT ranks EQUAL 3 AND test STREQUAL t_same))
      continue()
    endif()
    set(run_mpi sh -c "echo 'skipped: built without MPI (apt-get install libopenmpi-dev openmpi-bin)'; exit 77")
    if(NATGRAD_HAVE_MPI)
      set(run_mpi ${PROJECT_SOURCE_DIR}/tests/mpirun.sh ${ranks} $<TARGET_FILE:${test}_mpi>)
    endif()
    natgrad_test(${test}_mpi${ranks} LABEL unit COMMAND ${run_mpi})
    set_tests_properties(${test}_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  endforeach()
endforeach()
# Tests of the trainer's rooms, on its archive.
set(natgrad_trainer_tests
    t_compare
    t_data
    t_disk
    t_grads
    t_influence
    t_schedule
    t_mix
    t_models
    t_nn
    t_nn_forward
    t_nn_text
    t_plan_link
    t_pruning
    t_random
    t_recipe
    t_run
    t_run_kept
    t_run_steps
    t_settings
    t_traffic
    t_train)
add_library(natgrad_trainer_support STATIC tests/dense.c tests/folder.c tests/json_edit.c tests/ranks.c tests/tap.c tests/trained.c tests/trainer_help.c)
target_include_directories(natgrad_trainer_support PRIVATE include base io cli tests)
target_link_libraries(natgrad_trainer_support PRIVATE PkgConfig::CMOCKA)
foreach(test IN LISTS natgrad_trainer_tests)
  add_executable(${test} tests/${test}.c $<TARGET_OBJECTS:natgrad_io>)
  target_include_directories(${test} PRIVATE include base io cli tests)
  target_compile_definitions(${test} PRIVATE NG_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${test} PRIVATE natgrad_trainer_support natgrad_trainer natgrad ${natgrad_needs}
                        PkgConfig::CMOCKA)
  natgrad_test(${test} LABEL unit COMMAND ${test})
endforeach()
target_link_options(t_traffic PRIVATE -Wl,--wrap=ng_now_ms)
target_link_options(t_plan_link PRIVATE -Wl,--wrap=ng_now_ms)
target_sources(t_plan_link PRIVATE cli/plan_cost.c cli/plan_link.c cli/shapes.c cli/shapes_transformer.c)
# Makers of picture files, where their libraries are; skipped elsewhere.
add_executable(t_images tests/t_images.c $<TARGET_OBJECTS:natgrad_io>)
add_executable(t_picture tests/t_picture.c $<TARGET_OBJECTS:natgrad_io>)
add_executable(cli_pictures tests/cli/pictures.c)
foreach(program t_images t_picture cli_pictures)
  target_sources(${program} PRIVATE tests/picture_files.c)
  target_include_directories(${program} PRIVATE include base io cli tests)
  foreach(format JPEG PNG)
    if(NATGRAD_HAVE_${format})
      target_compile_definitions(${program} PRIVATE NG_HAVE_${format})
      target_link_libraries(${program} PRIVATE ${format}::${format})
    endif()
  endforeach()
endforeach()
foreach(test t_images t_picture)
  target_link_libraries(${test} PRIVATE natgrad_trainer_support natgrad_trainer natgrad ${natgrad_needs} PkgConfig::CMOCKA)
  natgrad_test(${test} LABEL unit COMMAND ${test})
endforeach()
target_link_options(t_disk PRIVATE -Wl,--wrap=rename,--wrap=close)
target_link_options(t_nn PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=aligned_alloc)
target_link_options(t_alloc PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=free)
target_link_options(t_reports PRIVATE -Wl,--wrap=ng_now_ms)
target_link_options(t_overlap PRIVATE -Wl,--wrap=ng_now_ms)
# Labelled `long`: not part of `make check`.
natgrad_test(linalg_9216 LABEL long TIMEOUT 18000
             COMMAND ${CMAKE_COMMAND} -E env NG_TEST_LONG=1 $<TARGET_FILE:t_linalg_long>)

# The program as a user meets it: scripts, and four programs they need: one reads JSON lines and
# unpacks recordings, one forges them, one runs the program on each, one is the program with a BLAS that picks the wrong kernels.
add_executable(cli_helper tests/cli/helper.c $<TARGET_OBJECTS:natgrad_io>)
target_include_directories(cli_helper PRIVATE io)
target_link_libraries(cli_helper PRIVATE ZLIB::ZLIB)
add_executable(cli_forge tests/cli/forge.c tests/json_edit.c $<TARGET_OBJECTS:natgrad_io>)
target_include_directories(cli_forge PRIVATE io tests)
target_link_libraries(cli_forge PRIVATE ZLIB::ZLIB)
set(natgrad_cli_inner ${natgrad_cli_sources}) # try_each.c includes main.c
list(REMOVE_ITEM natgrad_cli_inner cli/main.c)
add_executable(cli_try_each tests/cli/try_each.c ${natgrad_cli_inner} $<TARGET_OBJECTS:natgrad_io>)
target_include_directories(cli_try_each PRIVATE base io cli)
target_link_libraries(cli_try_each PRIVATE natgrad_trainer natgrad ${natgrad_needs})
add_executable(cli_fake_openblas ${natgrad_cli_sources} tests/cli/fake_openblas.c
               $<TARGET_OBJECTS:natgrad_io>)
target_include_directories(cli_fake_openblas PRIVATE base io cli)
target_link_libraries(cli_fake_openblas PRIVATE natgrad_trainer)
target_link_libraries(cli_fake_openblas PRIVATE natgrad ${natgrad_needs})
set_target_properties(cli_fake_openblas PROPERTIES ENABLE_EXPORTS ON)
foreach(script
    address_space
    arguments
    bench
    bench_state
    compare
    data
    environment
    export
    forged
    image_ranks
    images
    influence
    keep
    kernel
    mixed
    mixup_ranks
    options_in_sync
    parts
    parts_signals
    plan
    plan_run
    prune
    quantify
    ranks
    recordings
    refreshed
    replay_golden
    resume
    shapes
    signals
    terminal
    text
    train
    window_configs)
  natgrad_test(cli_${script} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/${script}.sh)
endforeach()

natgrad_test(cli_hosts LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/hosts.sh)
set_tests_properties(cli_hosts PROPERTIES PROCESSORS 2)
foreach(ranks 2 4)
  natgrad_test(cli_ranks_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/ranks.sh ${ranks})
  set_tests_properties(cli_ranks_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  natgrad_test(cli_parts_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/parts.sh ${ranks})
  set_tests_properties(cli_parts_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  natgrad_test(cli_parts_signals_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/parts_signals.sh ${ranks})
  set_tests_properties(cli_parts_signals_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  natgrad_test(cli_signals_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/signals.sh ${ranks})
  set_tests_properties(cli_signals_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  natgrad_test(cli_image_ranks_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/image_ranks.sh ${ranks})
  set_tests_properties(cli_image_ranks_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
  natgrad_test(cli_mixup_ranks_mpi${ranks} LABEL cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/mixup_ranks.sh ${ranks})
  set_tests_properties(cli_mixup_ranks_mpi${ranks} PROPERTIES PROCESSORS ${ranks})
endforeach()

# scripts/same_bits.sh runs this program with two builds of the shared library.
add_executable(bits tests/bits.c tests/bits_case.c tests/bits_run.c tests/plane.c)
target_include_directories(bits PRIVATE tests)
target_link_libraries(bits PRIVATE natgrad Threads::Threads m)
natgrad_test(bits_repeat LABEL unit
             COMMAND ${PROJECT_SOURCE_DIR}/tests/bits_repeat.sh $<TARGET_FILE:bits>)

# Killed again and again by scripts/torture.sh.
add_executable(torture_train tests/torture_train.c)
target_include_directories(torture_train PRIVATE include src base io tests)
target_link_libraries(torture_train PRIVATE natgrad_test_support natgrad_static ${natgrad_needs})

# Fuzz entries of the readers and parsers, fuzz/fuzz_NAME.c each.  Without a fuzzer a driver runs
# them over fuzz/corpus/NAME, so that what was found once stays found.
foreach(entry cifar idx npy options picture safetensors state)
  add_executable(fuzz_${entry} fuzz/fuzz_${entry}.c)
  target_include_directories(fuzz_${entry} PRIVATE include src base io tests)
  target_link_libraries(fuzz_${entry} PRIVATE natgrad_test_support natgrad_trainer natgrad_static
                        ${natgrad_needs})
  if(NATGRAD_FUZZ)
    target_link_options(fuzz_${entry} PRIVATE -fsanitize=fuzzer)
    set(run_once -runs=0)
  else()
    target_sources(fuzz_${entry} PRIVATE fuzz/driver.c)
    set(run_once)
  endif()
  natgrad_test(fuzz_${entry} LABEL unit
               COMMAND fuzz_${entry} ${run_once} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${entry})
endforeach()

# Examples see what a user sees.
foreach(example 00_hello 10_digits_mlp 20_three_layers)
  add_executable(example_${example} examples/${example}.c)
  target_link_libraries(example_${example} PRIVATE natgrad m)
  target_compile_options(example_${example} PRIVATE -UNG_EXPERIMENTAL)
  natgrad_test(example_${example} LABEL example
               COMMAND example_${example})
  set_tests_properties(example_${example} PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endforeach()
# Nothing else is C++, and a build without it lacks one example.  Clang goes with clang++: the options
# of sanitizers and fuzzers are those of the C compiler.
include(CheckLanguage)
string(REGEX REPLACE "clang([^/]*)$" "clang++\\1" companion "${CMAKE_C_COMPILER}")
if(NOT DEFINED ENV{CXX} AND NOT CMAKE_CXX_COMPILER AND CMAKE_C_COMPILER_ID MATCHES Clang AND EXISTS "${companion}")
  set(CMAKE_CXX_COMPILER "${companion}")
endif()
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  add_executable(example_30_cpp examples/30_cpp.cpp)
  target_link_libraries(example_30_cpp PRIVATE natgrad)
  target_compile_options(example_30_cpp PRIVATE -UNG_EXPERIMENTAL -Wold-style-cast)
  set_target_properties(example_30_cpp PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  natgrad_test(example_30_cpp LABEL example COMMAND example_30_cpp)
else()
  natgrad_test(example_30_cpp LABEL example COMMAND sh -c "echo 'skipped: no C++ compiler'; exit 77")
endif()

# The Python package.  What needs PyTorch runs on an old one and on a current one, where they are.
if(NOT NATGRAD_SANITIZE)
  set(python_test ${PROJECT_SOURCE_DIR}/tests/python.sh $<TARGET_FILE:natgrad>)
  natgrad_test(python_core LABEL python COMMAND ${python_test} any test_abi test_core)
  foreach(major 1 2)
    foreach(test
          attention
          bad_input
          between
          calls
          checkpoint
          compat
          compiled
          convolutions
          cuda
          curvature
          double
          dropped
          ekfac
          embedding_ranks
          embeddings
          examples
          exchange
          frames
          front
          groups
          hooks
          imports
          kaisa
          kfac_adam
          lzhangbv
          misuse
          muon
          norms
          passes
          ranks
          records
          rejected
          sharded_parameters
          shards
          shampoo
          shared_batch
          soap
          spngd
          states
          text
          tolerances
          torchrun
          trainers
          windows)
      natgrad_test(python_${test}_torch${major} LABEL python COMMAND ${python_test} ${major} test_${test})
    endforeach()
  endforeach()
  natgrad_test(python_wheel LABEL long COMMAND ${PROJECT_SOURCE_DIR}/tests/python_wheel.sh)
  natgrad_test(python_manylinux LABEL long COMMAND ${PROJECT_SOURCE_DIR}/tests/python_manylinux.sh)
endif()
# Python loads the shared library; one that needs a sanitizer's cannot be loaded so: skipped, not left out.
foreach(what layout train)
  set(run_torch ${PROJECT_SOURCE_DIR}/tests/torch_example.sh ${CMAKE_C_COMPILER} $<TARGET_FILE:natgrad> ${what})
  if(NATGRAD_SANITIZE)
    set(run_torch sh -c "echo 'skipped: the library needs a sanitizer' && exit 77")
  endif()
  natgrad_test(example_40_torch_${what} LABEL example COMMAND ${run_torch})
endforeach()
natgrad_test(twelve_lines LABEL example COMMAND ${PROJECT_SOURCE_DIR}/tests/twelve_lines.sh)
natgrad_test(readme LABEL example COMMAND ${PROJECT_SOURCE_DIR}/tests/readme.sh)
natgrad_test(house LABEL house COMMAND ${PROJECT_SOURCE_DIR}/scripts/house.sh)
natgrad_test(english LABEL house COMMAND ${PROJECT_SOURCE_DIR}/scripts/english.sh)
natgrad_test(sizes LABEL house COMMAND ${PROJECT_SOURCE_DIR}/scripts/sizes.sh)
natgrad_test(house_finds_mistakes LABEL house
             COMMAND ${PROJECT_SOURCE_DIR}/tests/house_finds_mistakes.sh)
natgrad_test(rooms LABEL house
             COMMAND ${PROJECT_SOURCE_DIR}/scripts/rooms.sh ${PROJECT_SOURCE_DIR}
                     $<TARGET_FILE:natgrad_static>)
natgrad_test(rooms_find_mistakes LABEL house
             COMMAND ${PROJECT_SOURCE_DIR}/tests/rooms_find_mistakes.sh ${CMAKE_C_COMPILER})
natgrad_test(ci_finds_skips LABEL house COMMAND ${PROJECT_SOURCE_DIR}/tests/ci_finds_skips.sh)
natgrad_test(exports LABEL install
             COMMAND ${PROJECT_SOURCE_DIR}/tests/exports.sh $<TARGET_FILE:natgrad>)
if(NATGRAD_HAVE_MPI)
  natgrad_test(exports_mpi LABEL install
               COMMAND ${PROJECT_SOURCE_DIR}/tests/exports.sh $<TARGET_FILE:natgrad_mpi> natgrad_mpi)
endif()
natgrad_test(globals LABEL house
             COMMAND ${PROJECT_SOURCE_DIR}/tests/globals.sh $<TARGET_FILE:natgrad_static>)
set(run_header $<TARGET_FILE:natgrad>)
if(NATGRAD_SANITIZE) # a program that is not instrumented cannot load it
  set(run_header)
endif()
natgrad_test(header LABEL install
             COMMAND ${PROJECT_SOURCE_DIR}/tests/header.sh ${CMAKE_C_COMPILER}
                     ${run_header})
natgrad_test(install LABEL install
             COMMAND ${PROJECT_SOURCE_DIR}/tests/install/run.sh ${CMAKE_COMMAND} ${CMAKE_C_COMPILER}
                     ${CMAKE_GENERATOR} ${CMAKE_INSTALL_LIBDIR} ${MPI_C_COMPILER})

foreach(test IN LISTS natgrad_quick_tests)
  if(NOT TEST ${test} AND NOT NATGRAD_SANITIZE)
    message(FATAL_ERROR "tests/tests.cmake: natgrad_quick_tests names '${test}', which is no test")
  endif()
endforeach()

# The kernels for GPUs: a fused step of Eva on the stand-in; the compiler's report.
natgrad_test(gpu_eva LABEL unit COMMAND gpu_eva tiny)
natgrad_test(cuda_kernels LABEL unit COMMAND ${PROJECT_SOURCE_DIR}/tests/cuda_kernels.sh)
