#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/text.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the score of the least likely piece

// The best segmentation of the text up to one position: its score and its last piece.
struct Best {
  double score = 0;
  std::optional<size_t> start;
  int64_t id = 0;
};

}  // namespace

Unigram::Unigram(std::vector<Piece> pieces, int64_t unknown_id, const std::string& where)
    : unknown_id_(unknown_id) {
  if (unknown_id >= static_cast<int64_t>(pieces.size())) {
    input_error(where, "the vocabulary has {}, but {} is the id of the unknown one",
                counted(static_cast<int64_t>(pieces.size()), "piece"), unknown_id);
  }
  double min_score = std::numeric_limits<double>::infinity();
  scores_.reserve(pieces.size());
  ids_.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (find_invalid_utf8(piece.text)) input_error(where, "piece {} of the vocabulary is not UTF-8", size());
    min_score = std::min(min_score, piece.score);
    max_bytes_ = std::max(max_bytes_, piece.text.size());
    ids_.insert_or_assign(std::move(piece.text), size());
    scores_.push_back(piece.score);
  }
  unknown_score_ = min_score - kUnknownPenalty;
}

std::optional<int64_t> Unigram::find(std::string_view piece) const {
  const auto place = ids_.find(piece);
  if (place == ids_.end()) return std::nullopt;
  return place->second;
}

void Unigram::encode(std::string_view word, std::vector<int64_t>& ids) const {
  std::vector<Best> best(word.size() + 1);  // by end of the last piece
  const auto offer = [&](size_t start, size_t end, double score, int64_t id) {
    const double sum = best[start].score + score;
    if (!best[end].start || sum > best[end].score) best[end] = {sum, start, id};
  };
  for (size_t start = 0; start < word.size();) {
    const size_t character = character_length(word[start]);
    const size_t longest = std::min(max_bytes_, word.size() - start);
    bool covered = false;
    // Pieces consist of whole characters, so no match ends within one.
    for (size_t length = 1; length <= longest; ++length) {
      const auto place = ids_.find(word.substr(start, length));
      if (place == ids_.end()) continue;
      offer(start, start + length, scores_[place->second], place->second);
      covered |= length == character;
    }
    if (!covered) offer(start, start + character, unknown_score_, unknown_id_);
    start += character;
  }

  std::vector<int64_t> backwards;
  for (size_t end = word.size(); end > 0; end = *best[end].start) {
    const int64_t id = best[end].id;
    if (id == unknown_id_ && !backwards.empty() && backwards.back() == unknown_id_) continue;
    backwards.push_back(id);
  }
  ids.insert(ids.end(), backwards.rbegin(), backwards.rend());
}

}  // namespace tessera::text
