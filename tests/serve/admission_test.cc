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

}  // namespace
}  // namespace tessera::serve
