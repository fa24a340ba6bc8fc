#include "serve/admission.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace tessera::serve {
namespace {

TEST(Admission, APromptNamesNoFileOfTheServer) {
  job::Job base;
  base.model = engine::read_model(golden_folder("tiny-open-sora"));
  base.arguments.request.dtype = at::kFloat;
  JobRequest job;
  job.request.prompts = {R"(a boat {"mask_strategy": "0", "reference\u005fpath": "/etc/passwd"})"};
  const auto refused = admit(job, base, {});
  ASSERT_TRUE(std::holds_alternative<JobRefusal>(refused));
  const auto& refusal = std::get<JobRefusal>(refused);
  EXPECT_EQ(refusal.parameter, "prompt");
  EXPECT_NE(refusal.error.message.find("'/etc/passwd'"), std::string::npos) << refusal.error.message;
  // What the client itself has sent.
  job.request.prompts = {"a boat"};
  job.request.video.reference_paths = {"upload"};
  job.request.video.mask_strategies = {"0"};
  const auto taken = admit(job, base, {});
  EXPECT_TRUE(std::holds_alternative<Admitted>(taken));
}

// The texts that a client may send are longer than those that can be cleaned.
TEST(Admission, ACaptionThatIsTooLongToBeCleanedIsRefused) {
  job::Job base;
  base.model = engine::read_model(golden_folder("tiny-pixart"));
  base.arguments.request.dtype = at::kFloat;
  JobRequest job;
  job.request.prompts = {std::string(20'000, 'a')};
  const auto refused = admit(job, base, {});
  ASSERT_TRUE(std::holds_alternative<JobRefusal>(refused));
  const auto& refusal = std::get<JobRefusal>(refused);
  EXPECT_EQ(refusal.parameter, "prompt");
  EXPECT_EQ(refusal.error.status, 400);
  EXPECT_EQ(
      spell(refusal.error.message),
      "[prompt] the caption has 20000 bytes, and at most 16384 can be cleaned; use clean_caption: false");
  job.request.clean_caption = false;
  EXPECT_TRUE(std::holds_alternative<Admitted>(admit(job, base, {})));
}

// The field of a request that names files has another name for clients, who send them.
TEST(Admission, ReferencesHaveTheNameByWhichTheyAreSent) {
  job::Job base;
  base.model = engine::read_model(golden_folder("tiny-open-sora"));
  base.arguments.request.dtype = at::kFloat;
  const auto refusal_of = [&](const std::vector<std::string>& references, const std::string& strategy) {
    JobRequest job;
    job.request.prompts = {"a boat"};
    job.request.video.reference_paths = references;
    job.request.video.mask_strategies = {strategy};
    const auto refused = admit(job, base, {});
    EXPECT_TRUE(std::holds_alternative<JobRefusal>(refused));
    const auto& refusal = std::get<JobRefusal>(refused);
    return refusal.parameter + ": " + spell(refusal.error.message);
  };
  EXPECT_EQ(refusal_of({}, "0"),
            "mask_strategy: [mask_strategy] has no effect without reference, of which it takes frames");
  EXPECT_EQ(refusal_of({"/uploads/1", "/uploads/2"}, "0"),
            "reference: [reference] 2 of them for 1 prompt; give one for all, or one for each");
}

TEST(Admission, MessagesNameNoFolderOfTheServer) {
  engine::Model model;
  model.folder = "/models/tiny";
  engine::Request request;
  for (int i = 0; i < 12; ++i) request.images.push_back(fmt::format("/state/uploads/1-image-{}", i));
  const auto expect = [&](const std::string& message, const std::string& shown) {
    EXPECT_EQ(spell(without_paths(message, request, model)), shown);
  };
  expect("[/models/tiny/vae/config.json] options without effect: x",
         "[vae/config.json] options without effect: x");
  expect("'/models/tiny/a' and '/models/tiny/b', not /models/tiny", "'a' and 'b', not /models/tiny");
  expect("[/state/uploads/1-image-11] is cut off", "[image] is cut off");
}

}  // namespace
}  // namespace tessera::serve
