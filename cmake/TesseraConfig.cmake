# find_package(Tessera) gives the target Tessera::tessera, the shared library with the headers of include/tessera/. libtorch is
# found in the folders of CMAKE_PREFIX_PATH: that of the pip package, torch/, or an unpacked archive. It must be of the version
# with which the library was built. (Its own CMake files would insist on the whole CUDA toolkit where it has CUDA.)
get_filename_component(Tessera_PREFIX ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
find_path(Tessera_TORCH_INCLUDE_DIR ATen/core/Tensor.h PATH_SUFFIXES include)
find_library(Tessera_TORCH_CPU_LIBRARY torch_cpu)
find_library(Tessera_C10_LIBRARY c10)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Tessera
  REQUIRED_VARS Tessera_TORCH_INCLUDE_DIR Tessera_TORCH_CPU_LIBRARY Tessera_C10_LIBRARY
  REASON_FAILURE_MESSAGE "libtorch is not in any folder of CMAKE_PREFIX_PATH")
if(Tessera_FOUND AND NOT TARGET Tessera::tessera)
  add_library(Tessera::tessera SHARED IMPORTED)
  set_target_properties(Tessera::tessera PROPERTIES
    IMPORTED_LOCATION ${Tessera_PREFIX}/lib/libtessera.so
    INTERFACE_INCLUDE_DIRECTORIES "${Tessera_PREFIX}/include;${Tessera_TORCH_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${Tessera_TORCH_CPU_LIBRARY};${Tessera_C10_LIBRARY}"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
