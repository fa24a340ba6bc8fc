# Every dependency, found once: `codecs` for the module of the codecs, what the library and the program need behind the one target
# `tessera_dependencies`.
include(cmake/libtorch.cmake)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PNG REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(SQLite3 REQUIRED)  # for the server alone
find_package(GTest)      # for the tests
find_package(benchmark)  # for bench/
find_package(Threads REQUIRED)
# Of Boost, the server takes Beast and Asio, which are headers.
find_path(BOOST_INCLUDE_DIR boost/beast/http/parser.hpp REQUIRED)

# FFmpeg's libraries, which bring no CMake files, and libjpeg, for the codecs.
find_package(JPEG)
set(CODECS_FOUND ${JPEG_FOUND})
add_library(codecs INTERFACE)
if(JPEG_FOUND)
  target_link_libraries(codecs INTERFACE JPEG::JPEG)
endif()
foreach(part avformat avcodec swscale avutil)
  find_path(${part}_INCLUDE_DIR lib${part}/${part}.h)
  find_library(${part}_LIBRARY ${part})
  if(${part}_INCLUDE_DIR AND ${part}_LIBRARY)
    target_include_directories(codecs SYSTEM INTERFACE ${${part}_INCLUDE_DIR})
    target_link_libraries(codecs INTERFACE ${${part}_LIBRARY})
  else()
    set(CODECS_FOUND OFF)
  endif()
endforeach()

add_library(tessera_dependencies INTERFACE)
target_include_directories(tessera_dependencies SYSTEM INTERFACE ${BOOST_INCLUDE_DIR})
target_link_libraries(tessera_dependencies INTERFACE libtorch CLI11::CLI11 nlohmann_json::nlohmann_json
                                                     PNG::PNG ICU::i18n ICU::uc Threads::Threads ${CMAKE_DL_LIBS})

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/ccache.sh)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  else()
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()
