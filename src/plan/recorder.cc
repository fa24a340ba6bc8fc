#include "plan/recorder.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

namespace tessera::plan {
namespace {

TensorShape shape_of(const ops::Operand& operand) {
  return {operand.shape.vec(), operand.dtype};
}

OperationEvent event_of(const ops::Operation& operation) {
  OperationEvent event{.name = std::string(operation.name),
                       .role = std::string(operation.role),
                       .block = operation.block,
                       .output = shape_of(operation.output),
                       .inputs = {},
                       .flops = operation.flops,
                       .bytes = operation.bytes};
  for (const ops::Operand& input : operation.inputs) event.inputs.push_back(shape_of(input));
  return event;
}

std::vector<Transfer> transfers_of(std::span<const comm::Message> messages, std::span<const int64_t> ranks) {
  std::vector<Transfer> transfers;
  for (const comm::Message& message : messages) {
    const auto bytes = static_cast<int64_t>(message.tensor.nbytes());
    if (bytes > 0) transfers.push_back({ranks[static_cast<size_t>(message.peer)], bytes});
  }
  return transfers;
}

CollectiveEvent event_of(const comm::Collective& collective, int64_t number) {
  CollectiveEvent event{.axis = std::string(collective.axis),
                        .name = std::string(collective.name),
                        .number = number,
                        .bytes = collective.bytes,
                        .ranks = {collective.ranks.begin(), collective.ranks.end()},
                        .sends = transfers_of(collective.sends, collective.ranks),
                        .receives = transfers_of(collective.receives, collective.ranks)};
  for (const auto& messages : {collective.sends, collective.receives}) {
    if (!messages.empty()) event.dtype = messages.front().tensor.scalar_type();
  }
  return event;
}

thread_local Recorder* current_recorder = nullptr;

// A call of libtorch that writes less than this takes negligible time. Otherwise, merging the moments of
// norms among 16 ranks, a few numbers each, would be 99 of 100 events of a decoder.
constexpr size_t kLeastBytes = 1024;

// Functions that compute a number per element of the result; all others move or compare data, or are rare.
constexpr std::array<std::string_view, 12> kElementwise = {
    "aten::add",  "aten::sub",   "aten::mul", "aten::div", "aten::neg",     "aten::exp",
    "aten::sqrt", "aten::rsqrt", "aten::sin", "aten::cos", "aten::sigmoid", "aten::silu"};

int64_t flops_of(std::string_view name, const at::Tensor& out) {
  if (name.ends_with('_')) name.remove_suffix(1);
  const bool is_listed = std::find(kElementwise.begin(), kElementwise.end(), name) != kElementwise.end();
  return is_listed ? out.numel() : 0;
}

void for_each_tensor(const c10::IValue& value, const auto& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

}  // namespace

// A call of libtorch that none of our operations makes, and that is not part of another call.
struct LibtorchCall : at::ObserverContext {
  std::vector<at::Tensor> inputs;
  double start = 0;
  Origin origin;  // the collective that it is a part of, or the call itself

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current_recorder->call_depth_++ > 0 || ops::is_in_operation()) return nullptr;
    auto made = std::make_unique<LibtorchCall>();
    made->start = current_recorder->seconds();
    made->origin =
        comm::is_in_collective() ? Origin::collective() : Origin{Origin::Kind::kLibtorchCall, call.handle()};
    for (const c10::IValue& value : call.inputs())
      for_each_tensor(value, [&](const at::Tensor& x) { made->inputs.push_back(x); });
    return made;
  }

  static void end(const at::RecordFunction& call, at::ObserverContext* context) {
    --current_recorder->call_depth_;
    if (context == nullptr) return;
    const auto& made = *static_cast<LibtorchCall*>(context);
    const std::string_view name = call.name();
    for (const c10::IValue& value : call.outputs())
      for_each_tensor(value, [&](const at::Tensor& out) { tell(name, out, made); });
  }

 private:
  static void tell(std::string_view name, const at::Tensor& out, const LibtorchCall& made) {
    const std::vector<at::Tensor>& inputs = made.inputs;
    const bool is_in_place = name.ends_with('_');
    const auto shares = [&](const at::Tensor& x) {
      return x.has_storage() && out.has_storage() && x.is_alias_of(out);
    };
    const bool is_view = !is_in_place && std::any_of(inputs.begin(), inputs.end(), shares);
    // From the host to the device; on a CPU, nothing is copied.
    const bool is_transfer =
        !inputs.empty() && inputs[0].device() != out.device() && inputs[0].scalar_type() == out.scalar_type();
    if (out.nbytes() < kLeastBytes || is_view || is_transfer || name.starts_with("aten::empty") ||
        name.starts_with("aten::new_empty"))
      return;
    OperationEvent event{.name = std::string(name),
                         .role = {},
                         .block = ops::current_block(),
                         .output = shape_of(out),
                         .inputs = {},
                         .flops = flops_of(name, out),
                         .bytes = static_cast<int64_t>(out.nbytes())};
    for (size_t i = 0; i < inputs.size(); ++i) {
      event.inputs.push_back(shape_of(inputs[i]));
      // Picking rows of a table does not read the rest of it.
      const bool is_table = i == 0 && name == "aten::index_select";
      event.bytes += static_cast<int64_t>(is_table ? out.nbytes() : inputs[i].nbytes());
    }
    current_recorder->add(std::move(event), made.start, made.origin);
  }
};

Recorder::Recorder(comm::World& world, RankTrace& trace, bool is_timed)
    : trace_(trace),
      is_timed_(is_timed),
      world_(world),
      observe_([this](const ops::Operation& operation) { add_operation(operation); },
               is_timed ? ops::ScopeHook([this](bool begins) { scope_changed(begins); }) : ops::ScopeHook()) {
  hooks_before_ = world.set_hooks(
      {.began = [this](const comm::Collective& collective) { began(collective); },
       .ended = [this](const comm::Collective& collective, std::chrono::nanoseconds under_way,
                       std::chrono::nanoseconds waited) { ended(collective, under_way, waited); }});
  current_recorder = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&LibtorchCall::begin, &LibtorchCall::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .needsIds(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Recorder::~Recorder() {
  at::removeCallback(callback_);
  current_recorder = nullptr;
  world_.set_hooks(std::move(hooks_before_));
}

void Recorder::follow(engine::Observer& observer) {
  using enum engine::Phase;
  observer.started = [this, started = observer.started](engine::Phase phase) {
    if (phase == kLoadTextEncoder || phase == kLoadVideoEncoder) begin_loading(Phase::kEncode);
    if (phase == kLoadDenoiser) begin_loading(Phase::kDenoise);
    if (phase == kLoadDecoder) begin_loading(Phase::kDecode);
    if (started) started(phase);
  };
  observer.finished = [this, finished = observer.finished](engine::Phase phase, double seconds) {
    if (phase == kLoadTextEncoder || phase == kLoadVideoEncoder || phase == kLoadDenoiser ||
        phase == kLoadDecoder)
      end_loading();
    if (finished) finished(phase, seconds);
  };
  observer.progressed = [this, progressed = observer.progressed](engine::Phase phase, int64_t done,
                                                                 int64_t total) {
    if (phase == kDenoise) begin_step(done);
    if (progressed) progressed(phase, done, total);
  };
}

void Recorder::began(const comm::Collective& collective) {
  if (hooks_before_.began) hooks_before_.began(collective);
  number_of_[collective.number] = collectives_;
  add(event_of(collective, collectives_++), seconds(), Origin::collective());
}

void Recorder::ended(const comm::Collective& collective, std::chrono::nanoseconds under_way,
                     std::chrono::nanoseconds waited) {
  if (hooks_before_.ended) hooks_before_.ended(collective, under_way, waited);
  const auto known = number_of_.find(collective.number);
  if (known == number_of_.end()) return;  // it began before this recorder
  add(WaitEvent{known->second}, seconds() - std::chrono::duration<double>(waited).count());
  number_of_.erase(known);
}

void Recorder::begin_loading(Phase phase) {
  // Encoders are loaded one after the other.
  if (phase_ != phase) bytes_before_ = static_cast<int64_t>(memory_.bytes());
  phase_ = phase;
  step_ = phase == Phase::kDenoise ? kBeforeSteps : 0;
  is_loading_ = true;
  weights_bytes_ = 0;
}

void Recorder::end_loading() {
  weights_bytes_ = static_cast<int64_t>(memory_.bytes()) - bytes_before_;
  memory_.take_peak();
  is_loading_ = false;
  trace_.weights_bytes[static_cast<size_t>(phase_)] = weights_bytes_;
}

double Recorder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Recorder::add_operation(const ops::Operation& operation) {
  const size_t before = trace_.events.size();
  add(event_of(operation), open_.empty() ? seconds() : open_.back().begin, Origin::operation());
  if (!open_.empty() && trace_.events.size() > before) open_.back().events.push_back(before);
}

// An operation is recorded while it computes, so its end is that of its scope.
void Recorder::scope_changed(bool begins) {
  if (begins) {
    open_.push_back({seconds(), {}});
    return;
  }
  if (open_.empty()) return;  // it began before this recorder
  for (const size_t event : open_.back().events) trace_.events[event].time->end = seconds();
  open_.pop_back();
}

void Recorder::add(std::variant<OperationEvent, CollectiveEvent, WaitEvent> what, double begin,
                   Origin origin) {
  if (is_loading_) return;
  origins_.push_back(origin);
  blocks_.push_back(ops::current_block());
  const auto beside_weights = [&](uint64_t bytes) {
    return std::max<int64_t>(static_cast<int64_t>(bytes) - weights_bytes_, 0);
  };
  trace_.events.push_back(
      {.phase = phase_,
       .step = step_,
       .time = is_timed_ ? std::optional(TimeSpan{std::max(begin, 0.0), seconds()}) : std::nullopt,
       .what = std::move(what),
       .live_bytes = beside_weights(memory_.bytes()),
       .peak_bytes = beside_weights(memory_.take_peak())});
}

}  // namespace tessera::plan
