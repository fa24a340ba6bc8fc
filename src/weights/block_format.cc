#include "weights/block_format.h"

#include <c10/util/Half.h>

#include <array>
#include <cstring>

namespace tessera::weights {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

const uint8_t* bytes_of(const std::byte* block) {
  return reinterpret_cast<const uint8_t*>(block);
}

// Blocks of 32 numbers: a factor; an addend if `has_offset`; the fifth bits of all numbers if `bits` is 5;
// and four bits of each number, those of the second half above those of the first.
template <int bits, bool has_offset>
void decode_nibbles(const std::byte* block, float* numbers) {
  const uint8_t* const bytes = bytes_of(block);
  const float factor = half_at(bytes);
  const float offset = has_offset ? half_at(bytes + 2) : 0;
  const uint8_t* const high = bytes + (has_offset ? 4 : 2);
  uint32_t fifth = 0;
  if constexpr (bits == 5) std::memcpy(&fifth, high, sizeof(fifth));
  const uint8_t* const low = high + (bits == 5 ? sizeof(fifth) : 0);
  constexpr int kCentre = has_offset ? 0 : 1 << (bits - 1);
  for (int i = 0; i < 32; ++i) {
    int number = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    if constexpr (bits == 5) number |= static_cast<int>(fifth >> i & 1) << 4;
    numbers[i] = factor * static_cast<float>(number - kCentre) + offset;
  }
}

void decode_q8_0(const std::byte* block, float* numbers) {
  const uint8_t* const bytes = bytes_of(block);
  const float factor = half_at(bytes);
  for (int i = 0; i < 32; ++i) numbers[i] = factor * static_cast<float>(static_cast<int8_t>(bytes[2 + i]));
}

// Blocks of 256 numbers, "super-blocks", have a factor for the factors of their parts, which are small
// integers.
constexpr int kSuper = 256;

// Two bits of each number: byte 32 h + i has those of numbers i, 32 + i, 64 + i and 96 + i of half h.
int two_bits(const uint8_t* bytes, int i) {
  return bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

void decode_q2_k(const std::byte* block, float* numbers) {
  const uint8_t *const parts = bytes_of(block), *const low = parts + 16;
  const float factor = half_at(low + 64), of_offsets = half_at(low + 66);
  for (int i = 0; i < kSuper; ++i) {
    const uint8_t part = parts[i / 16];
    numbers[i] = factor * static_cast<float>(part & 15) * static_cast<float>(two_bits(low, i)) -
                 of_offsets * static_cast<float>(part >> 4);
  }
}

void decode_q3_k(const std::byte* block, float* numbers) {
  const uint8_t *const third = bytes_of(block), *const low = third + 32, *const parts = low + 64;
  const float factor = half_at(parts + 12);
  std::array<float, 16> factors{};
  for (size_t j = 0; j < factors.size(); ++j) {
    const int of_low = j < 8 ? parts[j] & 15 : parts[j - 8] >> 4;
    const int of_high = parts[8 + j % 4] >> (j / 4 * 2) & 3;
    factors[j] = factor * static_cast<float>((of_low | of_high << 4) - 32);
  }
  for (int i = 0; i < kSuper; ++i) {
    const int is_above = third[i % 32] >> (i / 32) & 1;
    numbers[i] =
        factors[static_cast<size_t>(i) / 16] * static_cast<float>(two_bits(low, i) - (1 - is_above) * 4);
  }
}

// The factors and offsets of the eight parts of Q4_K and Q5_K, six bits each in twelve bytes.
struct Parts {
  Parts(const uint8_t* bytes, float factor, float of_offsets) {
    for (size_t j = 0; j < 4; ++j) {
      const uint8_t a = bytes[j], b = bytes[4 + j], c = bytes[8 + j];
      factors[j] = factor * static_cast<float>(a & 63);
      offsets[j] = of_offsets * static_cast<float>(b & 63);
      factors[4 + j] = factor * static_cast<float>((c & 15) | (a >> 6) << 4);
      offsets[4 + j] = of_offsets * static_cast<float>((c >> 4) | (b >> 6) << 4);
    }
  }
  std::array<float, 8> factors{}, offsets{};
};

// Four bits of each number: byte 32 p + i has those of numbers i and 32 + i of the p-th 64.
int four_bits(const uint8_t* bytes, int i) {
  return bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

template <int bits>
void decode_parts(const std::byte* block, float* numbers) {
  const uint8_t* const bytes = bytes_of(block);
  const Parts parts(bytes + 4, half_at(bytes), half_at(bytes + 2));
  const uint8_t *const fifth = bytes + 16, *const low = fifth + (bits == 5 ? 32 : 0);
  for (int i = 0; i < kSuper; ++i) {
    int number = four_bits(low, i);
    if constexpr (bits == 5) number |= (fifth[i % 32] >> (i / 32) & 1) << 4;
    const auto part = static_cast<size_t>(i) / 32;
    numbers[i] = parts.factors[part] * static_cast<float>(number) - parts.offsets[part];
  }
}

void decode_q6_k(const std::byte* block, float* numbers) {
  const uint8_t *const low = bytes_of(block), *const high = low + 128, *const parts = high + 64;
  const float factor = half_at(parts + 16);
  for (int i = 0; i < kSuper; ++i) {
    const int of_low = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    numbers[i] = factor * static_cast<float>(static_cast<int8_t>(parts[i / 16])) *
                 static_cast<float>((of_low | two_bits(high, i) << 4) - 32);
  }
}

constexpr std::array<BlockFormat, 10> kBlockFormats{{{"Q4_0", 32, 18, decode_nibbles<4, false>},
                                                     {"Q4_1", 32, 20, decode_nibbles<4, true>},
                                                     {"Q5_0", 32, 22, decode_nibbles<5, false>},
                                                     {"Q5_1", 32, 24, decode_nibbles<5, true>},
                                                     {"Q8_0", 32, 34, decode_q8_0},
                                                     {"Q2_K", kSuper, 84, decode_q2_k},
                                                     {"Q3_K", kSuper, 110, decode_q3_k},
                                                     {"Q4_K", kSuper, 144, decode_parts<4>},
                                                     {"Q5_K", kSuper, 176, decode_parts<5>},
                                                     {"Q6_K", kSuper, 210, decode_q6_k}}};

}  // namespace

const BlockFormat* find_block_format(std::string_view name) {
  for (const BlockFormat& format : kBlockFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

}  // namespace tessera::weights
