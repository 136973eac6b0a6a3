# flatout_room(NAME [LIBS lib...]): src/NAME as the static library flatout_NAME, its x_test.cpp as one
# GoogleTest program NAME_test, its x_bench.cpp as NAME_bench, each x_fuzz.cpp as a libFuzzer program.
# Rooms and libraries that it may use stand in LIBS; tools/check_layers.py holds includes to the table.

# With FLATOUT_PCH (.ci/run): what most files include, GoogleTest in tests, is parsed once. Rooms with
# flags of their own cannot take it, and in other builds every file has to include what it uses.
set(FLATOUT_PCH_HEADERS <fmt/format.h> <algorithm> <chrono> <cstdint> <functional> <map> <memory> <optional>
    <string> <string_view> <unordered_map> <vector>)
set(FLATOUT_OTHER_FLAGS flatout_agent flatout_devlimit flatout_devmem flatout_feed flatout_malloc flatout_nn
    flatout_train flatout_wire agent_test devlimit_test malloc_test)

function(flatout_pch target)
  if(NOT FLATOUT_PCH OR target IN_LIST FLATOUT_OTHER_FLAGS)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set(first base_test)
    list(APPEND FLATOUT_PCH_HEADERS <gtest/gtest.h>)
  else()
    set(first flatout_base)
  endif()
  if(target STREQUAL first)
    target_precompile_headers(${target} PRIVATE ${FLATOUT_PCH_HEADERS})
  else()
    target_precompile_headers(${target} REUSE_FROM ${first})
  endif()
endfunction()

function(flatout_room name)
  cmake_parse_arguments(ARG "" "" "LIBS;EXCLUDE" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB all CONFIGURE_DEPENDS ${dir}/*.cpp ${dir}/*.c)
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(benches ${all})
  list(FILTER benches INCLUDE REGEX "_bench\\.cpp$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cpp$")
  foreach(file IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${dir}/${file})
  endforeach()

  if(sources)
    add_library(flatout_${name} STATIC ${sources})
    target_link_libraries(flatout_${name} PUBLIC ${ARG_LIBS} PRIVATE flatout_warnings)
    target_include_directories(flatout_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src
                                                      ${PROJECT_SOURCE_DIR}/include)
    flatout_pch(flatout_${name})
    set(room flatout_${name})
  else()
    set(room ${ARG_LIBS})
  endif()

  if(tests AND FLATOUT_BUILD_TESTS)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE ${room} ${ARG_LIBS} flatout_warnings GTest::gtest
                                               GTest::gtest_main)
    target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/src
                                                    ${PROJECT_SOURCE_DIR}/include)
    # What is tested is optimised, the tests are not: they are half of what there is to compile.
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
    target_compile_definitions(${name}_test PRIVATE
      FLATOUT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests" FLATOUT_BUILD_DIR="${PROJECT_BINARY_DIR}")
    flatout_pch(${name}_test)
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60)
  endif()
  if(benches AND FLATOUT_BUILD_TESTS)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE ${room} ${ARG_LIBS} flatout_warnings
                                                benchmark::benchmark benchmark::benchmark_main)
    add_test(NAME ${name}.bench_runs COMMAND ${name}_bench --benchmark_min_time=0.001)
  endif()
  if(fuzzers AND FLATOUT_BUILD_TESTS AND NOT FLATOUT_FUZZ)
    # Compiled, not linked: whoever changes what a fuzzer calls sees it without the fuzz preset.
    add_library(${name}_fuzzers OBJECT ${fuzzers})
    target_link_libraries(${name}_fuzzers PRIVATE ${room} ${ARG_LIBS} flatout_warnings)
    target_compile_options(${name}_fuzzers PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  endif()
  if(FLATOUT_FUZZ)
    foreach(file IN LISTS fuzzers)
      get_filename_component(fuzzer ${file} NAME_WE)
      add_executable(${name}_${fuzzer} ${file})
      target_link_libraries(${name}_${fuzzer} PRIVATE ${room} ${ARG_LIBS} -fsanitize=fuzzer)
      file(GLOB corpus ${PROJECT_SOURCE_DIR}/tests/corpus/${fuzzer})
      # What it finds goes into the first folder.
      set(finds ${CMAKE_CURRENT_BINARY_DIR}/${fuzzer}_finds)
      file(MAKE_DIRECTORY ${finds})
      add_test(NAME ${name}.${fuzzer}
               COMMAND ${name}_${fuzzer} -max_total_time=20 -rss_limit_mb=2048 -timeout=10
                       ${finds} ${corpus})
      set_tests_properties(${name}.${fuzzer} PROPERTIES LABELS fuzz)
    endforeach()
  endif()
endfunction()
