/// @file
/// See cublas.h.
#include "common/cuda/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache::cuda {

namespace {

/// The cuBLAS of this build's toolkit: found by the loader, else in CUBLAS_FOLDER.
void* open_library() {
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  for (const std::string& path : {name, std::string(CUBLAS_FOLDER "/") + name}) {
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
  }
  throw RunError(
      fmt::format("--device cuda: cannot load {}: {}; install NVIDIA's cuBLAS or put its folder into "
                  "LD_LIBRARY_PATH",
                  name, dlerror()));
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw RunError(fmt::format("{}: cuBLAS status {}", what, static_cast<int>(status)));
}

}  // namespace

/// The functions that are called, with the types of cuBLAS's header, so the compiler checks the calls.
struct Cublas::Library {
  template <typename Function>
  Function* function(const char* name) const {
    void* found = dlsym(opened, name);
    if (found == nullptr) throw RunError(fmt::format("--device cuda: cuBLAS has no function {}", name));
    return reinterpret_cast<Function*>(found);
  }

  void* opened = open_library();  // stays open: CUDA libraries do not unload cleanly
  decltype(cublasCreate_v2)* create = function<decltype(cublasCreate_v2)>("cublasCreate_v2");
  decltype(cublasDestroy_v2)* destroy = function<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
  decltype(cublasSetStream_v2)* set_stream = function<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
  decltype(cublasSetWorkspace_v2)* set_workspace =
      function<decltype(cublasSetWorkspace_v2)>("cublasSetWorkspace_v2");
  decltype(cublasSetMathMode)* set_math_mode = function<decltype(cublasSetMathMode)>("cublasSetMathMode");
  // cublasGemmEx has overloads, so its type is written out: transposes, sizes, alpha, A, B, beta, C,
  // precision.
  using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  static_assert(std::is_same_v<decltype(static_cast<GemmEx*>(&cublasGemmEx)), GemmEx*>);
  GemmEx* gemm = function<GemmEx>("cublasGemmEx");
};

void Cublas::check_library() {
  open_library();
}

Cublas::Cublas(cudaStream_t stream) : library_(std::make_shared<Library>()) {
  // The size that NVIDIA recommends for Hopper. With this workspace a product allocates nothing.
  constexpr std::int64_t kWorkspaceBytes = 32 << 20;
  workspace_.reserve(kWorkspaceBytes, "the workspace of cuBLAS");
  cublasHandle_t handle = nullptr;
  check(library_->create(&handle), "starting cuBLAS");
  handle_ = {handle,
             [destroy = library_->destroy](void* created) { destroy(static_cast<cublasHandle_t>(created)); }};
  check(library_->set_stream(handle, stream), "giving cuBLAS its stream");
  check(library_->set_workspace(handle, workspace_.data(), static_cast<std::size_t>(kWorkspaceBytes)),
        "giving cuBLAS its workspace");
  // Partial sums of one product are added in float32 too.
  constexpr int kMode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check(library_->set_math_mode(handle, static_cast<cublasMath_t>(kMode)), "setting cuBLAS's precision");
}

void Cublas::multiply(DType dtype, const void* x, std::int64_t x_stride, const void* weight, void* y,
                      std::int64_t y_stride, std::int64_t rows, std::int64_t in, std::int64_t out,
                      bool add) const {
  if (rows == 0) return;
  const cudaDataType_t type = dtype == DType::f32   ? CUDA_R_32F
                              : dtype == DType::f16 ? CUDA_R_16F
                                                    : CUDA_R_16BF;
  const float one = 1, kept = add ? 1 : 0;
  // cuBLAS stores by columns, so our rows are its columns: y^T [out, rows] = W [out, in] x^T [in, rows].
  check(library_->gemm(static_cast<cublasHandle_t>(handle_.get()), CUBLAS_OP_T, CUBLAS_OP_N,
                       static_cast<int>(out), static_cast<int>(rows), static_cast<int>(in), &one, weight,
                       type, static_cast<int>(in), x, type, static_cast<int>(x_stride), &kept, y, type,
                       static_cast<int>(y_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a matrix product");
}

}  // namespace kvcache::cuda
