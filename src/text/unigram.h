// Finds the Unigram segmentation: the pieces whose scores (log-probabilities) have the largest sum. See Kudo,
// "Subword Regularization", 2018 (https://arxiv.org/abs/1804.10959), section 3.2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokens.h"

namespace tessera::text {

struct Piece {
  std::string text;  // UTF-8
  double score;
};

class Unigram {
 public:
  // A piece's position is its id; of two with the same text the later one counts. Characters that no piece
  // covers become `unknown_id`. Throws Error(kInput) with `where` if `unknown_id` is not below the number of
  // pieces, or if a piece is not UTF-8.
  Unigram(std::vector<Piece> pieces, int64_t unknown_id, const std::string& where);

  // Appends the ids of `word` (well-formed UTF-8) to `ids`; adjacent unknown characters share one id. Scores
  // are summed in double precision from the left; among equal sums, the one whose last piece starts earlier
  // wins: words such as "..." have several best segmentations, and the choice decides the ids.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

  std::optional<int64_t> find(std::string_view piece) const;
  int64_t size() const { return static_cast<int64_t>(scores_.size()); }

 private:
  TokenMap ids_;
  std::vector<double> scores_;
  int64_t unknown_id_;
  double unknown_score_;
  size_t max_bytes_ = 0;  // of the longest piece
};

}  // namespace tessera::text
