#include "core/tensor_heap.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

constexpr size_t kMiB = 1 << 20, kPage = 4096;

size_t resident_pages(void* data, size_t bytes) {
  auto* const first = static_cast<std::byte*>(data) + kPage - reinterpret_cast<uintptr_t>(data) % kPage;
  std::vector<unsigned char> pages(bytes / kPage - 1);
  EXPECT_EQ(::mincore(first, pages.size() * kPage, pages.data()), 0);
  size_t count = 0;
  for (const unsigned char page : pages) count += page & 1U;
  return count;
}

TEST(TensorHeap, LeavesSmallTensorsToLibtorch) {
  TensorHeap heap(64 * kMiB);
  const c10::DataPtr small = heap.allocate(TensorHeap::kLarge - 1);
  EXPECT_NE(small.get(), nullptr);
  EXPECT_EQ(heap.used(), 0U);
  EXPECT_EQ(heap.allocate(0).get(), nullptr);
}

TEST(TensorHeap, IsAligned) {
  TensorHeap heap(64 * kMiB);
  std::vector<c10::DataPtr> tensors;
  for (size_t i = 0; i < 10; ++i) {
    tensors.push_back(heap.allocate(kMiB + 7 * i));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().get()) % 64, 0U);
  }
}

TEST(TensorHeap, KeepsFreedMemoryForTheNextTensors) {
  TensorHeap heap(64 * kMiB);
  c10::DataPtr first = heap.allocate(3 * kMiB), second = heap.allocate(5 * kMiB);
  const c10::DataPtr third = heap.allocate(kMiB);
  std::memset(first.get(), 7, 3 * kMiB);
  std::memset(second.get(), 7, 5 * kMiB);
  void* const begin = first.get();
  // Neighbours become one piece, whichever is freed first.
  second.clear();
  first.clear();
  const c10::DataPtr both = heap.allocate(8 * kMiB);
  EXPECT_EQ(both.get(), begin);
  EXPECT_EQ(resident_pages(both.get(), 8 * kMiB), 8 * kMiB / kPage - 1);
}

TEST(TensorHeap, JoinsAPieceWithThoseBeforeAndBehindIt) {
  TensorHeap heap(16 * kMiB);
  std::vector<c10::DataPtr> tensors;
  tensors.reserve(4);
  for (int i = 0; i < 4; ++i) tensors.push_back(heap.allocate(3 * kMiB));
  void* const second = tensors[1].get();
  tensors[1].clear();
  tensors[3].clear();
  tensors[2].clear();
  const c10::DataPtr rest = heap.allocate(12 * kMiB);
  EXPECT_EQ(rest.get(), second);
}

TEST(TensorHeap, WhatDoesNotFitComesFromLibtorch) {
  TensorHeap heap(4 * kMiB);
  c10::DataPtr large = heap.allocate(8 * kMiB);
  std::memset(large.get(), 1, 8 * kMiB);
  EXPECT_EQ(heap.used(), 0U);
  large.clear();
  try {
    heap.allocate(size_t{1} << 60);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("can't allocate memory"), std::string::npos) << error.what();
  }
}

TEST(TensorHeap, ServesWhereThereAreNoAddresses) {
  TensorHeap heap(size_t{1} << 60);
  const c10::DataPtr tensor = heap.allocate(2 * kMiB);
  std::memset(tensor.get(), 1, 2 * kMiB);
  EXPECT_EQ(heap.used(), 0U);
}

TEST(TensorHeap, FreesByAddress) {
  TensorHeap heap(64 * kMiB), other(64 * kMiB);
  void *const small = heap.raw_allocate(100), *const large = heap.raw_allocate(2 * kMiB);
  const c10::DataPtr of_other = other.allocate(2 * kMiB);
  EXPECT_GT(heap.used(), 0U);
  heap.raw_deallocate(large);
  heap.raw_deallocate(small);
  EXPECT_EQ(heap.used(), 0U);
  EXPECT_GT(other.used(), 0U);
}

struct Counter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*data*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes = 0;
};

TEST(TensorHeap, IsReportedToTheProfiler) {
  TensorHeap heap(64 * kMiB);
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  c10::DataPtr tensor = heap.allocate(3 * kMiB + 5);
  EXPECT_EQ(counter->bytes, static_cast<int64_t>(3 * kMiB + 5));
  tensor.clear();
  EXPECT_EQ(counter->bytes, 0);
}

TEST(TensorHeapRanks, ThreadsNeverShareMemory) {
  TensorHeap heap(64 * kMiB);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&heap, thread] {
      for (int round = 0; round < 50; ++round) {
        const size_t size = kMiB + static_cast<size_t>(round % 7) * 100000;
        const c10::DataPtr tensor = heap.allocate(size);
        auto* const bytes = static_cast<unsigned char*>(tensor.get());
        bytes[0] = bytes[size - 1] = static_cast<unsigned char>(thread);
        std::this_thread::yield();
        ASSERT_EQ(bytes[0], thread);
        ASSERT_EQ(bytes[size - 1], thread);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(heap.used(), 0U);
}

}  // namespace
}  // namespace tessera
