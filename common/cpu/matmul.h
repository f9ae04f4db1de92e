/// @file
/// The matrix product of the forward pass on the CPU: y = x W^T + b for one or many rows, stored or added.
/// Chapter: step 1.
#pragma once

#include <span>

#include "common/base/matrix.h"
#include "common/base/thread_pool.h"

namespace kvcache {

/// One product y = x W^T + b of a call to `matmul`, and where its rows go.
struct MatmulOutput {
  const Projection* projection;  ///< W and b
  float* data;          ///< [rows, projection->weight.rows], each row `stride` floats after the one before
  std::int64_t stride;  ///< floats between the rows of `data`
  /// y is added to the numbers of `data`. Each sum is rounded, and before it y, if it has a bias.
  bool add = false;
};

/// Multiplies `x` [rows, in] (each row `x_stride` floats after the one before) with every projection of
/// `outputs`. x holds numbers of type `store_as`, and results are rounded to it. All products share one run
/// of the threads, so q, k and v cost one hand-over of work instead of three.
///
/// Every output number is one inner product, summed in the order of vec16.h, or, where the processor
/// multiplies bf16 itself and both x and W are bf16, in that of lines.h. So its bits depend on its row of x
/// and its row of W alone, not on the number of rows or threads.
void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, std::span<const MatmulOutput> outputs,
            DType store_as, ThreadPool& threads);

}  // namespace kvcache
