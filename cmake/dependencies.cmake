# Every dependency, found once: `ffmpeg` for the codecs, all others behind the one target `tessera_dependencies`.
include(cmake/libtorch.cmake)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PNG REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(GTest REQUIRED)
find_package(Threads REQUIRED)

# FFmpeg's libraries bring no CMake files.
add_library(ffmpeg INTERFACE)
foreach(part avformat avcodec swscale avutil)
  find_path(${part}_INCLUDE_DIR lib${part}/${part}.h REQUIRED)
  find_library(${part}_LIBRARY ${part} REQUIRED)
  target_include_directories(ffmpeg SYSTEM INTERFACE ${${part}_INCLUDE_DIR})
  target_link_libraries(ffmpeg INTERFACE ${${part}_LIBRARY})
endforeach()

add_library(tessera_dependencies INTERFACE)
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
