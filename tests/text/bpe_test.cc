#include "text/bpe.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::text {
namespace {

std::vector<int64_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int64_t> ids;
  bpe.encode(word, ids);
  return ids;
}

// Makes a vocabulary of a to d and the given merges, in their order.
Bpe make_bpe(const std::vector<Merge>& merges, BpeOptions options = {}) {
  TokenMap vocabulary{{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}, {"?", 4}};
  for (const Merge& merge : merges)
    vocabulary.emplace(merge.left + merge.right, static_cast<int64_t>(vocabulary.size()));
  return Bpe(std::move(vocabulary), merges, std::move(options), "file");
}

TEST(Bpe, MergesTheFirstPairOfTraining) {
  const Bpe bpe = make_bpe({{"b", "c"}, {"a", "b"}, {"bc", "d"}});
  EXPECT_EQ(encode(bpe, ""), std::vector<int64_t>{});
  EXPECT_EQ(encode(bpe, "d"), std::vector<int64_t>{3});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(encode(bpe, "abab"), (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(encode(bpe, "abcd"), (std::vector<int64_t>{0, 7}));
}

TEST(Bpe, MergesTheLeftmostOfEqualPairs) {
  const Bpe bpe = make_bpe({{"a", "a"}, {"aa", "a"}});
  EXPECT_EQ(encode(bpe, "aaa"), std::vector<int64_t>{6});
  EXPECT_EQ(encode(bpe, "aaaa"), (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(encode(bpe, "aaaaa"), (std::vector<int64_t>{5, 6}));
}

TEST(Bpe, OfTwoMergesOfOnePairTheLaterCounts) {
  const Bpe bpe = make_bpe({{"a", "b"}, {"b", "c"}, {"a", "b"}});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int64_t>{0, 6}));
}

TEST(Bpe, PutsTheSuffixOnTheLastCharacter) {
  const Bpe bpe = make_bpe({{"a", "b"}}, {.end_of_word_suffix = "b"});
  EXPECT_EQ(encode(bpe, "ba"), (std::vector<int64_t>{1, 5}));  // b and ab
  EXPECT_EQ(encode(bpe, "ab"), (std::vector<int64_t>{0}));     // bb is no token
  EXPECT_EQ(encode(bpe, "aab"), (std::vector<int64_t>{0, 0}));
}

TEST(Bpe, GivesUnknownCharactersTheirToken) {
  const std::string word = "x\u00e9a\U0001f600";
  EXPECT_EQ(encode(make_bpe({}), word), std::vector<int64_t>{0});
  EXPECT_EQ(encode(make_bpe({}, {.unknown_token = "?"}), word), (std::vector<int64_t>{4, 4, 0, 4}));
  EXPECT_EQ(encode(make_bpe({}, {.unknown_token = "?", .fuse_unknown = true}), word),
            (std::vector<int64_t>{4, 0, 4}));
}

TEST(Bpe, IgnoresMergesForWordsThatAreTokens) {
  const std::vector<Merge> merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  EXPECT_EQ(encode(make_bpe(merges), "abc"), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(encode(make_bpe(merges, {.ignore_merges = true}), "abc"), std::vector<int64_t>{7});
}

TEST(Bpe, RefusesMergesOfWhatIsNotThere) {
  const auto refusal = [](const Merge& merge, const BpeOptions& options) -> std::string {
    try {
      const Bpe bpe(TokenMap{{"a", 0}, {"b", 1}}, {merge}, options, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({"a", "x"}, {}), "[file] merge 1, 'a x': 'x' is not in the vocabulary");
  EXPECT_EQ(refusal({"a", "b"}, {}), "[file] merge 1, 'a b': 'ab' is not in the vocabulary");
  EXPECT_EQ(refusal({"", "a"}, {}), "[file] merge 1, ' a': '' is not in the vocabulary");
}

// This takes minutes if each merge scans the whole word.
TEST(Bpe, EncodesAWordOfAMegabyte) {
  const Bpe bpe = make_bpe({{"a", "a"}, {"aa", "aa"}, {"aaaa", "b"}, {"b", "a"}});
  std::string word;
  while (word.size() < 1 << 20) word += "aaaab";
  EXPECT_EQ(encode(bpe, word).size(), word.size() / 5);
}

}  // namespace
}  // namespace tessera::text
