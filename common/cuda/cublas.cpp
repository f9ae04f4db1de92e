/// @file
/// See cublas.h.
#include "common/cuda/cublas.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache::cuda {

namespace {

/// The cuBLAS of this build's toolkit: found by the loader, else in CUBLAS_FOLDER.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  for (const std::string& path : {name, std::string(CUBLAS_FOLDER "/") + name}) {
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
  }
  throw RunError(
      fmt::format("--device cuda: cannot load {}: {}; install NVIDIA's cuBLAS or put its folder into "
                  "LD_LIBRARY_PATH",
                  name, dlerror()));
}

/// Up to 16 rows stay; more become the next multiple of 16 or, from 256 on, of an eighth of their power of
/// two.
std::int64_t rounded_up(std::int64_t rows) {
  if (rows <= 16) return rows;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
  const std::int64_t step = std::max<std::int64_t>(16, power / 8);
  return (rows + step - 1) / step * step;
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

  /// An object that cuBLAS has made, with the function that destroys it.
  template <typename Made>
  static std::shared_ptr<Made> owned(Made* made, cublasStatus_t (*destroy)(Made*)) {
    return {made, destroy};
  }
  /// The layout of a matrix of `rows` rows, which cuBLAS calls columns. @param stride  from one to the next
  std::shared_ptr<cublasLtMatrixLayoutOpaque_t> layout_of(cudaDataType_t type, std::int64_t cols,
                                                          std::int64_t rows, std::int64_t stride) const {
    cublasLtMatrixLayout_t made = nullptr;
    check(create_layout(&made, type, static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows),
                        stride),
          "describing a matrix to cuBLAS");
    return owned(made, destroy_layout);
  }

  void* opened = open_library();  // stays open: CUDA libraries do not unload cleanly
  decltype(cublasLtCreate)* create = function<decltype(cublasLtCreate)>("cublasLtCreate");
  decltype(cublasLtDestroy)* destroy = function<decltype(cublasLtDestroy)>("cublasLtDestroy");
  decltype(cublasLtMatrixLayoutCreate)* create_layout =
      function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  decltype(cublasLtMatrixLayoutDestroy)* destroy_layout =
      function<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  decltype(cublasLtMatmulDescCreate)* create_operation =
      function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  decltype(cublasLtMatmulDescSetAttribute)* set_operation =
      function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  decltype(cublasLtMatmulDescDestroy)* destroy_operation =
      function<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  decltype(cublasLtMatmulPreferenceCreate)* create_preference =
      function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  decltype(cublasLtMatmulPreferenceSetAttribute)* set_preference =
      function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  decltype(cublasLtMatmulPreferenceDestroy)* destroy_preference =
      function<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  decltype(cublasLtMatmulAlgoGetHeuristic)* choose =
      function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  decltype(cublasLtMatmulAlgoCheck)* check_algorithm =
      function<decltype(cublasLtMatmulAlgoCheck)>("cublasLtMatmulAlgoCheck");
  decltype(cublasLtMatmul)* multiply = function<decltype(cublasLtMatmul)>("cublasLtMatmul");
};

/// How cuBLAS multiplies matrices of some sizes. It stores by columns, so our rows are its columns:
/// y^T [out, rows] = W [out, in] x^T [in, rows].
struct Cublas::Plan {
  std::shared_ptr<cublasLtMatmulDescOpaque_t> operation;
  std::shared_ptr<cublasLtMatrixLayoutOpaque_t> weight, x, y;
  cublasLtMatmulAlgo_t algorithm;
};

void Cublas::check_library() {
  open_library();
}

Cublas::Cublas(cudaStream_t stream) : stream_(stream), library_(std::make_shared<Library>()) {
  // The size that NVIDIA recommends for Hopper. With this workspace a product allocates nothing.
  constexpr std::int64_t kWorkspaceBytes = 32 << 20;
  workspace_.reserve(kWorkspaceBytes, "the workspace of cuBLAS");
  cublasLtHandle_t handle = nullptr;
  check(library_->create(&handle), "starting cuBLAS");
  handle_ = Library::owned(handle, library_->destroy);
}

const Cublas::Plan& Cublas::plan_for(const Key& key) {
  if (const auto known = plans_.find(key); known != plans_.end()) return *known->second;
  const auto [dtype, rows, in, out, x_stride, y_stride, alignment] = key;
  const Library& library = *library_;
  const cudaDataType_t type = static_cast<DType>(dtype) == DType::f32   ? CUDA_R_32F
                              : static_cast<DType>(dtype) == DType::f16 ? CUDA_R_16F
                                                                        : CUDA_R_16BF;
  auto plan = std::make_shared<Plan>();
  cublasLtMatmulDesc_t operation = nullptr;
  check(library.create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a matrix product");
  plan->operation = Library::owned(operation, library.destroy_operation);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(library.set_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "describing a matrix product");
  plan->weight = library.layout_of(type, in, out, in);
  plan->x = library.layout_of(type, in, rows, x_stride);
  plan->y = library.layout_of(type, out, rows, y_stride);

  Key rounded = key;
  rounded[1] = rounded_up(rows);
  if (rounded != key) plan->algorithm = plan_for(rounded).algorithm;
  if (rounded == key || !can_use(*plan)) plan->algorithm = choose(*plan, alignment);
  return *plans_.emplace(key, std::move(plan)).first->second;
}

bool Cublas::can_use(const Plan& plan) const {
  cublasLtMatmulHeuristicResult_t result{};
  return library_->check_algorithm(static_cast<cublasLtHandle_t>(handle_.get()), plan.operation.get(),
                                   plan.weight.get(), plan.x.get(), plan.y.get(), plan.y.get(),
                                   &plan.algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<std::size_t>(workspace_.size());
}

cublasLtMatmulAlgo_t Cublas::choose(const Plan& plan, std::int64_t alignment) const {
  const Library& library = *library_;
  cublasLtMatmulPreference_t preference = nullptr;
  check(library.create_preference(&preference), "choosing a matrix product");
  const auto owned = Library::owned(preference, library.destroy_preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(library.set_preference(preference, attribute, &value, sizeof value), "choosing a matrix product");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_.size()));
  // Partial sums of one product are added in float32 too.
  constexpr std::uint32_t kReductions =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, static_cast<std::uint32_t>(alignment));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(library.choose(static_cast<cublasLtHandle_t>(handle_.get()), plan.operation.get(), plan.weight.get(),
                       plan.x.get(), plan.y.get(), plan.y.get(), preference, 1, &best, &found),
        "choosing a matrix product");
  if (found == 0) throw RunError("cuBLAS has no kernel for a matrix product");
  return best.algo;
}

void Cublas::multiply(DType dtype, const void* x, std::int64_t x_stride, const void* weight, void* y,
                      std::int64_t y_stride, std::int64_t rows, std::int64_t in, std::int64_t out, bool add) {
  if (rows == 0) return;
  constexpr std::uintptr_t kMostAlignment = 256;
  const std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y) |
                                   reinterpret_cast<std::uintptr_t>(weight) | kMostAlignment;
  const auto alignment = static_cast<std::int64_t>(addresses & -addresses);  // the lowest bit
  const Plan& plan =
      plan_for({static_cast<std::int64_t>(dtype), rows, in, out, x_stride, y_stride, alignment});
  const float one = 1, kept = add ? 1 : 0;
  check(library_->multiply(static_cast<cublasLtHandle_t>(handle_.get()), plan.operation.get(), &one, weight,
                           plan.weight.get(), x, plan.x.get(), &kept, y, plan.y.get(), y, plan.y.get(),
                           &plan.algorithm, workspace_.data(), static_cast<std::size_t>(workspace_.size()),
                           stream_),
        "a matrix product");
}

}  // namespace kvcache::cuda
