#include "row_list.h"

#include <algorithm>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

uint32_t AddRow(RowList* list, bool may_reuse = true) {
  const uint32_t slot = list->Next(may_reuse);
  CHECK_EQ(list->Next(may_reuse), slot);  // asked twice, it is the same
  list->Add(slot);
  return slot;
}

void Fill(RowRef row, size_t num_floats, uint32_t value) {
  std::fill_n(row.weights, num_floats, static_cast<float>(value));
  *row.meta = {value, value + 1};
}

TEST(RowsOfAnyWidthStayWhereTheyAreAndKeepWhatIsWritten) {
  for (size_t dim : {1, 2, 3, 7, 8, 16, 17, 64, 70, 333, 1024, 4096}) {
    for (size_t state_per_weight : {0, 1, 2}) {
      const RowLayout layout(dim, state_per_weight);
      const size_t num_floats = dim * (1 + state_per_weight);
      Arena arena;
      RowList list(&arena, layout);
      std::vector<uint32_t> slots;
      std::vector<RowRef> rows;
      const size_t num_rows = std::min<size_t>(20'000, (4 << 20) / layout.stride());
      for (uint32_t i = 0; i < num_rows; ++i) {
        slots.push_back(AddRow(&list));
        CHECK(i == 0 || slots[i] > slots[i - 1]);
        rows.push_back(list.At(slots[i]));
        Fill(rows[i], num_floats, i);
      }
      for (uint32_t i = 0; i < num_rows; ++i) {
        const RowRef row = list.At(slots[i]);
        CHECK_EQ(row.weights, rows[i].weights);
        CHECK_EQ(row.meta, rows[i].meta);
        CHECK_EQ(row.weights[0], static_cast<float>(i));
        CHECK_EQ(row.weights[num_floats - 1], static_cast<float>(i));
        CHECK_EQ(row.meta->num_pushes, i);
        CHECK_EQ(row.meta->step, i + 1);
        if (layout.stride() <= 64) {
          const uintptr_t start = reinterpret_cast<uintptr_t>(row.weights);
          CHECK_EQ(start / 64, (start + num_floats * sizeof(float) - 1) / 64);  // one cache line
        }
      }
    }
  }
}

TEST(ListTakesNoMemoryBeforeItsFirstRowAndLittleOverItsRowsAfter) {
  Arena arena;
  const RowLayout layout(8, 1);
  RowList list(&arena, layout);
  CHECK_EQ(arena.BytesAllocated(), 0u);
  AddRow(&list);
  CHECK(arena.BytesAllocated() <= 8192);
  for (int i = 1; i < 10'000; ++i) AddRow(&list);
  CHECK(arena.BytesAllocated() <= 2 * 10'000 * (layout.stride() + sizeof(RowMeta)));
}

TEST(FreedSlotsAreUsedAgainTheLastFirstAndOnlyIfTheyMay) {
  for (size_t dim : {1, 16, 4096}) {  // many rows a page, and one
    Arena arena;
    const RowLayout layout(dim, 1);
    RowList list(&arena, layout);
    CHECK_EQ(list.end(), 0u);
    std::vector<uint32_t> slots;
    for (int i = 0; i < 300; ++i) {
      slots.push_back(AddRow(&list));
      Fill(list.At(slots.back()), 2 * dim, slots.back());
      CHECK_EQ(list.end(), slots.back() + 1);
    }
    for (int i : {7, 299, 0}) list.Free(slots[i]);
    const uint32_t end = list.end(), fresh = AddRow(&list, /*may_reuse=*/false);
    CHECK(fresh >= end);
    for (int i : {0, 299, 7}) {
      CHECK_EQ(AddRow(&list), slots[i]);
      Fill(list.At(slots[i]), 2 * dim, slots[i]);
    }
    CHECK(AddRow(&list) > fresh);
    for (uint32_t slot : slots) {
      CHECK_EQ(list.At(slot).weights[2 * dim - 1], static_cast<float>(slot));
      CHECK_EQ(list.At(slot).meta->num_pushes, slot);
    }
  }
}

TEST(AssignedListIsANewOne) {
  Arena arena;
  const RowLayout layout(4, 0);
  RowList list(&arena, layout);
  const uint32_t first = AddRow(&list);
  for (int i = 0; i < 1'000; ++i) AddRow(&list);
  list = RowList(&arena, layout);
  CHECK_EQ(AddRow(&list), first);
  Fill(list.At(first), 4, 7);
  CHECK_EQ(list.At(first).weights[3], 7.0f);
}

}  // namespace
}  // namespace ps_server
