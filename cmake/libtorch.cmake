# libtorch, from the folder that CMAKE_PREFIX_PATH names: the pip package's, or an unpacked archive. Not by the CMake
# files that it brings: where libtorch has CUDA, those insist on the whole CUDA toolkit, which nothing here needs.
find_path(TORCH_INCLUDE_DIR torch/csrc/distributed/c10d/Store.hpp REQUIRED)
find_library(TORCH_CPU_LIBRARY torch_cpu REQUIRED)
find_library(C10_LIBRARY c10 REQUIRED)
cmake_path(GET TORCH_INCLUDE_DIR PARENT_PATH TORCH_INSTALL_PREFIX)

add_library(libtorch INTERFACE)
# System headers: their warnings are not ours.
# The first folder stands in for one header; see there.
target_include_directories(libtorch SYSTEM INTERFACE ${CMAKE_CURRENT_LIST_DIR}/libtorch ${TORCH_INCLUDE_DIR}
                                                     ${TORCH_INCLUDE_DIR}/torch/csrc/api/include)
target_compile_definitions(libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(libtorch INTERFACE ${TORCH_CPU_LIBRARY} ${C10_LIBRARY})

# GPUs. To load libtorch's CUDA takes a second at every start, so only where there is a driver.
find_library(TORCH_CUDA_LIBRARY torch_cuda)
find_library(C10_CUDA_LIBRARY c10_cuda)
if(TORCH_CUDA_LIBRARY AND EXISTS /proc/driver/nvidia/version)
  set(has_gpu ON)
endif()
option(TESSERA_CUDA "Run on GPUs; wants a libtorch with CUDA" ${has_gpu})
if(TESSERA_CUDA)
  # Nothing refers to them: they register themselves.
  target_link_options(libtorch INTERFACE
    "SHELL:-Wl,--no-as-needed ${TORCH_CUDA_LIBRARY} ${C10_CUDA_LIBRARY} -Wl,--as-needed")
  # c10d's header for NCCL wants those of NCCL, of CUDA and of its libraries. The pip packages beside libtorch's have most,
  # a CUDA toolkit the rest.
  file(GLOB beside ${TORCH_INSTALL_PREFIX}/../nvidia/*/include)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${beside})
  find_path(CUDA_INCLUDE_DIR crt/host_config.h HINTS /usr/local/cuda/include ${beside})
  find_path(CUSPARSE_INCLUDE_DIR cusparse.h HINTS /usr/local/cuda/include ${beside})
  if(NCCL_INCLUDE_DIR AND CUDA_INCLUDE_DIR AND CUSPARSE_INCLUDE_DIR)
    target_compile_definitions(libtorch INTERFACE USE_C10D_NCCL)
    target_include_directories(libtorch SYSTEM
                               INTERFACE ${NCCL_INCLUDE_DIR} ${CUDA_INCLUDE_DIR} ${CUSPARSE_INCLUDE_DIR})
  else()
    message(WARNING "no nccl.h, or no headers of the CUDA toolkit: --device cuda will run on one rank only")
  endif()
endif()
