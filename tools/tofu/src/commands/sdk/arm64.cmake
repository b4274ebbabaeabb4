# cmake --toolchain SDK/arm64.cmake: for nodes with Fugaku's processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER "${CMAKE_CURRENT_LIST_DIR}/bin/fccpx")
set(CMAKE_CXX_COMPILER "${CMAKE_CURRENT_LIST_DIR}/bin/FCCpx")
set(CMAKE_Fortran_COMPILER "${CMAKE_CURRENT_LIST_DIR}/bin/frtpx")
list(APPEND CMAKE_PREFIX_PATH "${CMAKE_CURRENT_LIST_DIR}")
