// Tests that every rank learns of a request's failure, on one rank or on all, and that the engine then gives
// the next request the result that a new engine would.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <future>
#include <new>

#include "comm/collectives.h"
#include "core/error.h"
#include "engine/engine.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

enum class Failure { kNone, kLoading, kEncoding, kAmidSteps, kDecoding };
thread_local Failure failure = Failure::kNone;  // this rank's, in the current request

class FailingForward final : public models::Forward {
 public:
  explicit FailingForward(std::unique_ptr<models::Forward> real) : real_(std::move(real)) {}
  void begin(const models::Timestep& timestep) override {
    ++steps_;
    real_->begin(timestep);
  }
  models::Hidden embed(const at::Tensor& latents) override { return real_->embed(latents); }
  void block(int64_t i, models::Hidden& hidden) override {
    if (steps_ == 2 && failure == Failure::kAmidSteps) throw std::bad_alloc();
    real_->block(i, hidden);
  }
  at::Tensor head(const models::Hidden& hidden) override { return real_->head(hidden); }
  std::vector<models::Stream> streams(int64_t i) const override { return real_->streams(i); }

 private:
  std::unique_ptr<models::Forward> real_;
  int steps_ = 0;
};

class FailingDenoiser final : public models::Denoiser {
 public:
  explicit FailingDenoiser(std::unique_ptr<models::Denoiser> real) : real_(std::move(real)) {}
  std::unique_ptr<models::Forward> start(const models::ForwardInputs& inputs) const override {
    return std::make_unique<FailingForward>(real_->start(inputs));
  }
  at::ScalarType dtype() const override { return real_->dtype(); }
  int64_t conditioning_width() const override { return real_->conditioning_width(); }
  int64_t pooled_width() const override { return real_->pooled_width(); }
  at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const override {
    return real_->guide(negative, positive, scale);
  }

 private:
  std::unique_ptr<models::Denoiser> real_;
};

class FailingDecoder final : public models::Decoder {
 public:
  explicit FailingDecoder(std::unique_ptr<models::Decoder> real) : real_(std::move(real)) {}
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         models::ClipMemory* memory) const override {
    if (failure == Failure::kDecoding) throw std::bad_alloc();
    return real_->decode_clip(z, frames, tokens, memory);
  }
  int64_t tile_size() const override { return real_->tile_size(); }
  int64_t scale_factor() const override { return real_->scale_factor(); }
  int64_t clip_bytes(int64_t height, int64_t width) const override {
    return real_->clip_bytes(height, width);
  }

 private:
  std::unique_ptr<models::Decoder> real_;
};

class FailingTextEncoder final : public models::TextEncoder {
 public:
  explicit FailingTextEncoder(std::unique_ptr<models::TextEncoder> real) : real_(std::move(real)) {}
  std::vector<models::Conditioning> encode(const std::vector<models::Prompt>& prompts,
                                           int64_t max_length) override {
    if (failure == Failure::kEncoding) throw std::bad_alloc();
    return real_->encode(prompts, max_length);
  }

 private:
  std::unique_ptr<models::TextEncoder> real_;
};

const models::Family& real() {
  return *tiny().family;
}

// Returns the tiny model with parts that fail when `failure` says so.
Model fragile() {
  static const models::Family family = [] {
    models::Family with_failures = real();
    with_failures.load_denoiser = [](const std::filesystem::path& folder, const models::LoadOptions& options,
                                     models::LoadStatistics& cost) -> std::unique_ptr<models::Denoiser> {
      if (failure == Failure::kLoading && !options.placement.device.is_meta()) throw std::bad_alloc();
      return std::make_unique<FailingDenoiser>(real().load_denoiser(folder, options, cost));
    };
    with_failures.text_encoders.front().load =
        [](const std::filesystem::path& folder, const models::LoadOptions& options,
           models::LoadStatistics& cost) -> std::unique_ptr<models::TextEncoder> {
      return std::make_unique<FailingTextEncoder>(real().text_encoders.front().load(folder, options, cost));
    };
    with_failures.load_decoder = [](const std::filesystem::path& folder, const models::LoadOptions& options,
                                    models::LoadStatistics& cost) -> std::unique_ptr<models::Decoder> {
      return std::make_unique<FailingDecoder>(real().load_decoder(folder, options, cost));
    };
    return with_failures;
  }();
  Model model = tiny();
  model.family = &family;
  return model;
}

// Returns the exit code and the message that run() throws ("5 " for no memory), or an empty text.
std::string outcome(Engine& engine, const Settings& settings, const parallel::Layout& layout,
                    const Observer& observer = {}) {
  try {
    engine.run(settings, layout, observer);
  } catch (const Error& error) {
    return fmt::format("{} {}", error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return "5 ";
  }
  return "";
}

struct Wires {
  comm::Wire wire;
  bool gives_up;  // even while messages are under way
};

class Failures : public ::testing::TestWithParam<size_t> {};

TEST_P(Failures, AreHeardByAllAndLeaveTheEngineAsItWas) {
  const Way way = ways()[GetParam()];
  const int64_t size = way.options.degrees();
  Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), tiny());
  parallel::Layout layout = way.layout(settings);
  for (const auto& wires : {Wires{comm::Wire::kShared, true}, {comm::Wire::kGloo, false}}) {
    const comm::Wire wire = wires.wire;
    const bool gives_up = wires.gives_up;
    Result expected, after;
    layout.vae_parallel = gives_up;  // otherwise no rank waits for others while decoding
    comm::run_ranks_as_threads(
        size,
        [&](const comm::World& world) {
          const bool is_first = world.rank() == 0, is_last = world.rank() + 1 == size;
          {
            Engine engine(tiny(), 0, world);
            Result result = engine.run(settings, layout);
            if (is_first) expected = std::move(result);
          }
          // The budget has no room for any part, so each is loaded anew.
          Engine engine(fragile(), 0, world);
          const auto others = [&](bool fails, const std::string& what) {
            return fails ? "5 " : fmt::format("4 [rank {}] {}", size - 1, what);
          };
          failure = is_last ? Failure::kLoading : Failure::kNone;
          EXPECT_EQ(outcome(engine, settings, layout), others(is_last, "failed: not enough memory"));
          failure = Failure::kNone;
          EXPECT_EQ(outcome(engine, settings, layout), "");

          failure = is_first ? Failure::kDecoding : Failure::kNone;
          if (gives_up || way.options.data_parallel_degree == 1) {
            const std::string told = outcome(engine, settings, layout);
            EXPECT_TRUE(is_first ? told == "5 " : told.starts_with("4 [rank ")) << told;
            failure = Failure::kNone;
          }

          Settings unknown = settings;
          unknown.request.scheduler = "magic";
          EXPECT_TRUE(outcome(engine, unknown, layout).starts_with("2 [scheduler] unknown sampler 'magic'"));

          failure = is_last ? Failure::kAmidSteps : Failure::kNone;
          if (gives_up) {
            const std::string told = outcome(engine, settings, layout);
            EXPECT_TRUE(is_last ? told == "5 " : told.starts_with("4 [rank ")) << told;
          }
          failure = Failure::kNone;
          Result result = engine.run(settings, layout);
          if (is_first) after = std::move(result);
        },
        wire);
    EXPECT_TRUE(equal(after, expected)) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Failures, ::testing::Range<size_t>(0, ways().size()));

// An unknown token is found before the first message of a text encoder that is split over ranks.
TEST(FailureOfRanks, OfAPromptIsTheSameOnAllRanks) {
  const Way way{"cfg", parallel::degrees(1, true, 1, 1, 1, 1)};
  const Settings good = tiny_settings(1);
  Settings bad = good;
  bad.request.prompts = {"a \xff cat"};  // resolve() would refuse it
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        EXPECT_TRUE(outcome(engine, bad, way.layout(good)).starts_with("2 [prompt] ")) << world.rank();
        EXPECT_EQ(outcome(engine, good, way.layout(good)), "");
      },
      comm::Wire::kShared);
}

// A rank that fails before the refusal does not wait for the others until their next request.
TEST(FailureOfRanks, BesideAPromptThatIsRefusedLeavesTheEngineAsItWas) {
  const Way way{"cfg", parallel::degrees(1, true, 1, 1, 1, 1)};
  const Settings good = tiny_settings(1);
  Settings bad = good;
  bad.request.prompts = {"a \xff cat"};
  for (const int64_t failing : {0, 1}) {
    comm::run_ranks_as_threads(
        2,
        [&](const comm::World& world) {
          Engine engine(fragile(), kNoLimit, world);
          failure = world.rank() == failing ? Failure::kEncoding : Failure::kNone;
          const std::string told = outcome(engine, bad, way.layout(good));
          failure = Failure::kNone;
          EXPECT_TRUE(world.rank() == failing ? told == "5 " : told.starts_with("2 [prompt] ")) << told;
          EXPECT_EQ(outcome(engine, good, way.layout(good)), "");
        },
        comm::Wire::kShared);
  }
}

// An observer's own failure is not a wish to end, but the others end at the same place, on every wire.
TEST(FailureOfRanks, OfTheQuestionWhetherToEndIsHeardByAll) {
  const Way way{"cfg", parallel::degrees(1, true, 1, 1, 1, 1)};
  const Settings settings = tiny_settings(1);
  for (const comm::Wire wire : {comm::Wire::kShared, comm::Wire::kGloo}) {
    comm::run_ranks_as_threads(
        2,
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world);
          int64_t questions = 0;
          Observer observer;
          observer.cancelled = [&] {
            ++questions;
            return false;
          };
          EXPECT_EQ(outcome(engine, settings, way.layout(settings), observer), "");
          const int64_t all = questions;
          EXPECT_GE(all, world.rank() == 0 ? 8 : 0);
          for (int64_t last = 1; last <= 12; ++last) {
            questions = 0;
            observer.cancelled = [&]() -> bool {
              if (++questions == last) throw std::bad_alloc();
              return false;
            };
            const std::string told = outcome(engine, settings, way.layout(settings), observer);
            if (last > all && world.rank() == 0) continue;
            EXPECT_TRUE(world.rank() == 0 ? told == "5 "
                                          : told == "4 [rank 0] failed: not enough memory" || told.empty())
                << last << ": " << told;
          }
          EXPECT_EQ(outcome(engine, settings, way.layout(settings)), "");
        },
        wire);
  }
}

// Fails when this rank has done all of its work in a phase. Other ranks may have finished it long before.
Observer failing_after(Phase phase) {
  Observer observer;
  observer.finished = [phase](Phase finished, double) {
    if (finished == phase) throw std::bad_alloc();
  };
  return observer;
}

// No message is under way after the last one of a phase, so the engine stays usable on every wire.
TEST_P(Failures, AfterTheLastMessageAreHeardByAll) {
  const Way way = ways()[GetParam()];
  const Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), tiny());
  for (const comm::Wire wire : {comm::Wire::kShared, comm::Wire::kGloo}) {
    Result expected, after;
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](const comm::World& world) {
          const bool is_first = world.rank() == 0;
          Engine engine(tiny(), kNoLimit, world);
          Result result = engine.run(settings, way.layout(settings));
          if (is_first) expected = std::move(result);
          for (const Phase phase : {Phase::kEncode, Phase::kDenoise, Phase::kDecode}) {
            const Observer observer = is_first ? failing_after(phase) : Observer();
            EXPECT_EQ(outcome(engine, settings, way.layout(settings), observer),
                      is_first ? "5 " : "4 [rank 0] failed: not enough memory")
                << way.name << ", " << phase_name(phase) << ", rank " << world.rank();
          }
          result = engine.run(settings, way.layout(settings));
          if (is_first) after = std::move(result);
        },
        wire);
    EXPECT_TRUE(equal(after, expected)) << way.name;
  }
}

// Pictures of several replicas are gathered when most ranks have nothing left to do.
TEST(FailureOfRanks, OfGatheringPicturesLeavesTheNextRequestRight) {
  Way way{"data and cfg", parallel::degrees(2, true, 1, 1, 1, 1)};
  const Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), tiny());
  for (const bool together : {false, true}) {
    parallel::Layout layout = way.layout(settings);
    layout.vae_parallel = together;
    Result expected, after;
    comm::run_ranks_as_threads(
        4,
        [&](comm::World world) {
          const bool is_first = world.rank() == 0;
          Engine engine(tiny(), kNoLimit, world);
          Result result = engine.run(settings, layout);
          if (is_first) expected = std::move(result);
          {
            int gathered = 0;  // latents, then pictures
            comm::CollectiveHooks hooks;
            hooks.began = [&](const comm::Collective& collective) {
              const bool is_gather = collective.axis == "dp" && collective.name == "gather";
              if (is_gather && ++gathered == 2 && is_first) throw std::bad_alloc();
            };
            const comm::ScopedHooks scoped(world, hooks);
            const std::string told = outcome(engine, settings, layout);
            EXPECT_TRUE(is_first ? told == "5 " : told.starts_with("4 [rank ")) << told;
          }
          result = engine.run(settings, layout);
          if (is_first) after = std::move(result);
        },
        comm::Wire::kShared);
    EXPECT_TRUE(equal(after, expected)) << together;
  }
}

// Connects rank 0 with a rank that agrees to every settlement and is lost once messages are given up.
class LostAtTheEnd final : public comm::Fabric {
 public:
  std::shared_ptr<comm::Transport> transport(std::vector<int64_t> /*ranks*/, int64_t /*tag*/) override {
    return std::make_shared<Well>();
  }
  void require_alive() override {}
  bool abort() override { comm::lost_peer(1, "it closed the connection"); }

 private:
  struct Over final : comm::Exchange {
    void wait() override {}
  };
  struct Well final : comm::Transport {
    std::unique_ptr<comm::Exchange> post(std::vector<comm::Message> /*sends*/,
                                         std::vector<comm::Message> receives,
                                         comm::Posting /*posting*/) override {
      for (comm::Message& message : receives) message.tensor.fill_(-1);
      return std::make_unique<Over>();
    }
  };
};

// A peer that is lost after this rank has failed does not hide the cause.
TEST(FailureOfRanks, IsTheFirstCauseAlsoWhereGivingUpFails) {
  const Way way{"data", parallel::degrees(2, false, 1, 1, 1, 1)};
  const Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), tiny());
  Engine engine(tiny(), kNoLimit, comm::World(0, 2, std::make_shared<LostAtTheEnd>()));
  Observer observer;
  observer.progressed = [](Phase, int64_t, int64_t) { throw std::bad_alloc(); };
  EXPECT_EQ(outcome(engine, settings, way.layout(settings), observer), "5 ");
  EXPECT_TRUE(outcome(engine, settings, way.layout(settings)).starts_with("4 [engine] an earlier request"));
}

// Other ranks may wait for the rank that gives up, not for the one that is lost.
TEST(FailureOfRanks, IsHeardByThoseThatLiveWhereAnotherRankIsLost) {
  std::promise<void> heard;
  comm::run_ranks_as_threads(
      3,
      [&](comm::World world) {
        const comm::Group to_lost = world.group({0, 1}, "to lost"), to_living = world.group({0, 2}, "living");
        at::Tensor x = at::empty({1});
        if (world.rank() == 0) {
          EXPECT_THROW(comm::receive(x, 1, to_lost).wait(), Error);
          EXPECT_THROW(world.abort(), Error);
          heard.get_future().wait_for(std::chrono::seconds(20));
        }
        if (world.rank() != 2) return;
        try {
          comm::receive(x, 0, to_living).wait();
          ADD_FAILURE() << "nothing was sent";
        } catch (const Error& error) {
          EXPECT_TRUE(std::string(error.what()).find("gave up") != std::string::npos) << error.what();
        }
        heard.set_value();
      },
      comm::Wire::kShared);
}

// An observer that throws Cancelled itself has told no other rank.
TEST(FailureOfRanks, IsAlsoAnExceptionThatSaysCancelled) {
  const Way way{"cfg", parallel::degrees(1, true, 1, 1, 1, 1)};
  const Settings settings = tiny_settings(1);
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        Observer observer;
        observer.progressed = [&](Phase, int64_t, int64_t) {
          if (world.rank() == 0) throw Cancelled();
        };
        if (world.rank() == 0) {
          EXPECT_THROW(engine.run(settings, way.layout(settings), observer), Cancelled);
        } else {
          EXPECT_TRUE(outcome(engine, settings, way.layout(settings)).starts_with("4 [rank 0] gave up"));
        }
        EXPECT_EQ(outcome(engine, settings, way.layout(settings)), "");
      },
      comm::Wire::kShared);
}

// A failure counts for more than a wish to end, whichever rank has the lower number.
TEST(FailureOfRanks, CountsForMoreThanACancellation) {
  const Way way{"data", parallel::degrees(3, false, 1, 1, 1, 1)};
  const Settings settings = resolve(tiny_request(16, 32, 3, {"a cat", "a dog", "a house"}), tiny());
  for (const int64_t failing : {0, 1, 2}) {
    comm::run_ranks_as_threads(
        3,
        [&](const comm::World& world) {
          Engine engine(fragile(), 0, world);
          bool is_wished = false;
          Observer observer;
          observer.started = [&](Phase phase) {
            is_wished |= phase == Phase::kLoadDenoiser && world.rank() == (failing + 1) % 3;
          };
          observer.cancelled = [&] { return is_wished; };
          failure = world.rank() == failing ? Failure::kLoading : Failure::kNone;
          const std::string told = outcome(engine, settings, way.layout(settings), observer);
          failure = Failure::kNone;
          if (world.rank() == failing) {
            EXPECT_EQ(told, "5 ");
          } else {
            EXPECT_EQ(told, fmt::format("4 [rank {}] failed: not enough memory", failing)) << world.rank();
          }
        },
        comm::Wire::kShared);
  }
}

// Ranks that have nothing left to do when others decode hear of the end too.
TEST(FailureOfRanks, ARunThatIsCancelledIsSoOnAllRanks) {
  const Way way{"cfg", parallel::degrees(1, true, 1, 1, 1, 1)};
  const Settings settings = tiny_settings(1);
  for (const bool together : {false, true}) {
    parallel::Layout layout = way.layout(settings);
    layout.vae_parallel = together;
    comm::run_ranks_as_threads(
        2,
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world);
          bool is_wished = false;
          Observer observer;
          observer.started = [&](Phase phase) { is_wished |= phase == Phase::kDecode; };
          observer.cancelled = [&] { return is_wished; };
          EXPECT_THROW(engine.run(settings, layout, observer), Cancelled) << world.rank();
          EXPECT_EQ(outcome(engine, settings, layout), "");
        },
        comm::Wire::kShared);
  }
}

}  // namespace
}  // namespace tessera::engine
