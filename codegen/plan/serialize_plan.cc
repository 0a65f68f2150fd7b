#include <limits>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/plan.pb.h"
#include "codegen/plan/verify_plan.h"
#include "ir/io/serialize_graph.h"
#include "ir/io/serialize_types.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

constexpr uint32_t kVersion = 4;

template <typename Repeated>
void WriteList(const std::vector<int>& list, Repeated& out) {
  out.Assign(list.begin(), list.end());
}

template <typename Repeated>
void WriteAttrs(const ir::Attrs& attrs, Repeated& out) {
  for (const auto& [name, value] : attrs.values()) {
    ir::WriteAttr(name, value, *out.Add());
  }
}

template <typename Repeated>
ir::Attrs ReadAttrs(const Repeated& in) {
  ir::Attrs attrs;
  for (const auto& attr : in) ir::ReadAttr(attr, attrs);
  return attrs;
}

template <typename Repeated>
void WriteInPlace(const std::vector<InPlace>& pairs, Repeated& out) {
  for (const InPlace& pair : pairs) {
    proto::InPlaceProto& p = *out.Add();
    p.set_operand(pair.operand);
    p.set_result(pair.result);
  }
}

template <typename Repeated>
std::vector<InPlace> ReadInPlace(const Repeated& in) {
  std::vector<InPlace> pairs;
  for (const proto::InPlaceProto& p : in) {
    pairs.push_back({p.operand(), p.result()});
  }
  return pairs;
}

template <typename Repeated>
std::vector<ir::TensorType> ReadTypes(const Repeated& in) {
  std::vector<ir::TensorType> types;
  for (const auto& type : in) {
    types.push_back(ir::ReadType(type));
    CheckType(types.back());
  }
  return types;
}

// --- Writing -----------------------------------------------------------------

void WriteBuffers(const Plan& plan, proto::PlanProto& out) {
  for (const Arena& arena : plan.arenas) {
    proto::PlanProto::Arena& a = *out.add_arenas();
    a.set_name(arena.name);
    a.set_kind(static_cast<uint32_t>(arena.kind));
    a.set_bytes(arena.bytes);
  }
  for (const Buffer& buffer : plan.buffers) {
    proto::PlanProto::Buffer& b = *out.add_buffers();
    b.set_arena(buffer.arena);
    b.set_offset(buffer.offset);
    b.set_bytes(buffer.bytes);
    ir::WriteType(buffer.type, *b.mutable_type());
    b.set_name(buffer.name);
    b.set_location(buffer.location.path);
    b.set_source(ToString(buffer.location.source));
    WriteList(buffer.members, *b.mutable_members());
    b.set_packed(buffer.packed);
  }
}

void WriteCode(const Plan& plan, proto::PlanProto& out) {
  for (const CompiledKernel& kernel : plan.kernels) {
    proto::PlanProto::CompiledKernel& k = *out.add_kernels();
    WriteKernel(kernel.kernel, *k.mutable_kernel());
    k.set_fingerprint(kernel.fingerprint);
    k.set_binary(kernel.binary);
    WriteInPlace(kernel.in_place, *k.mutable_in_place());
  }
  for (const LibraryCall& call : plan.calls) {
    proto::PlanProto::Call& c = *out.add_calls();
    c.set_op(std::string(call.op_name()));
    WriteAttrs(call.attrs, *c.mutable_attrs());
    for (const auto& type : call.operands)
      ir::WriteType(type, *c.add_operands());
    for (const auto& type : call.results) ir::WriteType(type, *c.add_results());
    c.set_implementation(call.implementation);
    c.set_workspace_bytes(call.workspace_bytes);
    c.set_plan(call.plan);
    WriteInPlace(call.in_place, *c.mutable_in_place());
    if (call.body != nullptr) c.set_body(ir::Serialize(*call.body));
  }
}

void WriteSteps(const Plan& plan, proto::PlanProto& out) {
  for (const Step& step : plan.steps) {
    proto::PlanProto::Step& s = *out.add_steps();
    s.set_kind(static_cast<uint32_t>(step.kind));
    s.set_index(step.index);
    WriteList(step.args, *s.mutable_args());
    s.set_stream(step.stream);
    WriteList(step.waits, *s.mutable_waits());
    s.set_records(static_cast<uint32_t>(step.records + 1));
    s.set_name(step.name);
    s.set_location(step.location.path);
    s.set_source(ToString(step.location.source));
    s.set_op_class(step.op_class);
    s.set_bytes(step.bytes);
    s.set_flops(step.flops);
  }
}

void WriteInterface(const Plan& plan, proto::PlanProto& out) {
  for (const PlanInput& input : plan.inputs) {
    proto::PlanProto::Input& i = *out.add_inputs();
    i.set_name(input.name);
    i.set_role(std::string(InputRoleName(input.role)));
    WriteAttrs(input.attrs, *i.mutable_attrs());
    i.set_buffer(input.buffer);
  }
  for (const PlanOutput& output : plan.outputs) {
    proto::PlanProto::Output& o = *out.add_outputs();
    o.set_name(output.name);
    o.set_buffer(output.buffer);
    o.set_alias(static_cast<uint32_t>(output.alias + 1));
  }
  for (const Plan::Constant& constant : plan.constants) {
    proto::PlanProto::Constant& c = *out.add_constants();
    c.set_buffer(constant.buffer);
    c.set_bytes(constant.bytes);
  }
}

// --- Reading -----------------------------------------------------------------

void ReadBuffers(const proto::PlanProto& in, Plan& plan) {
  for (const proto::PlanProto::Arena& a : in.arenas()) {
    FUSOR_CHECK(a.kind() <= static_cast<uint32_t>(ArenaKind::kGradient), kGraph,
                "arena of kind {}", a.kind());
    plan.arenas.push_back(
        {a.name(), static_cast<ArenaKind>(a.kind()), a.bytes()});
  }
  for (const proto::PlanProto::Buffer& b : in.buffers()) {
    ir::TensorType type = ir::ReadType(b.type());
    CheckType(type);
    plan.buffers.push_back(
        {.arena = b.arena(),
         .offset = b.offset(),
         .bytes = b.bytes(),
         .type = std::move(type),
         .name = b.name(),
         .location = {b.location(), ir::ParseSourceLine(b.source())},
         .members = {b.members().begin(), b.members().end()},
         .packed = b.packed()});
  }
}

void ReadCode(const proto::PlanProto& in, Plan& plan) {
  for (const proto::PlanProto::CompiledKernel& k : in.kernels()) {
    plan.kernels.push_back({.kernel = ReadKernel(k.kernel()),
                            .fingerprint = k.fingerprint(),
                            .binary = k.binary(),
                            .in_place = ReadInPlace(k.in_place())});
    Verify(plan.kernels.back().kernel);
  }
  for (const proto::PlanProto::Call& c : in.calls()) {
    plan.calls.push_back(
        {.op = ir::GetOp(c.op()).kind,
         .attrs = ReadAttrs(c.attrs()),
         .body = c.body().empty() ? nullptr : ir::Deserialize(c.body(), "body"),
         .operands = ReadTypes(c.operands()),
         .results = ReadTypes(c.results()),
         .implementation = c.implementation(),
         .workspace_bytes = c.workspace_bytes(),
         .plan = c.plan(),
         .in_place = ReadInPlace(c.in_place())});
  }
}

void ReadSteps(const proto::PlanProto& in, Plan& plan) {
  for (const proto::PlanProto::Step& s : in.steps()) {
    FUSOR_CHECK(s.kind() <= static_cast<uint32_t>(StepKind::kCollective),
                kGraph, "step of kind {}", s.kind());
    plan.steps.push_back(
        {.kind = static_cast<StepKind>(s.kind()),
         .index = s.index(),
         .args = {s.args().begin(), s.args().end()},
         .stream = s.stream(),
         .waits = {s.waits().begin(), s.waits().end()},
         .records = static_cast<int>(s.records() - 1),
         .name = s.name(),
         .location = {s.location(), ir::ParseSourceLine(s.source())},
         .op_class = s.op_class(),
         .bytes = s.bytes(),
         .flops = s.flops()});
  }
}

void ReadInterface(const proto::PlanProto& in, Plan& plan) {
  for (const proto::PlanProto::Input& i : in.inputs()) {
    const auto role = ir::ParseInputRole(i.role());
    FUSOR_CHECK(role.has_value(), kGraph, "input of an unknown role");
    plan.inputs.push_back({i.name(), *role, ReadAttrs(i.attrs()), i.buffer()});
  }
  for (const proto::PlanProto::Output& o : in.outputs()) {
    plan.outputs.push_back(
        {o.name(), o.buffer(), static_cast<int>(o.alias() - 1)});
  }
  for (const proto::PlanProto::Constant& c : in.constants()) {
    plan.constants.push_back({c.buffer(), c.bytes()});
  }
}

}  // namespace

std::string SerializePlan(const Plan& plan) {
  proto::PlanProto out;
  out.set_version(kVersion);
  out.set_name(plan.name);
  out.set_target(plan.target);
  out.set_choices(plan.choices);
  WriteBuffers(plan, out);
  WriteCode(plan, out);
  WriteSteps(plan, out);
  out.set_num_events(plan.num_events);
  WriteInterface(plan, out);
  out.set_peak_bytes(plan.peak_bytes);
  out.set_lower_bound_bytes(plan.lower_bound_bytes);
  return out.SerializeAsString();
}

Plan ParsePlan(std::string_view bytes) {
  proto::PlanProto in;
  FUSOR_CHECK(
      bytes.size() <= std::numeric_limits<int>::max() &&
          in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
      kGraph, "plan: {} bytes are not a serialised plan or are corrupt",
      bytes.size());
  FUSOR_CHECK(in.version() == kVersion, kGraph,
              "plan: expected format version {}, got {}", kVersion,
              in.version());
  Plan plan;
  plan.name = in.name();
  plan.target = in.target();
  plan.choices = in.choices();
  plan.num_events = in.num_events();
  plan.peak_bytes = in.peak_bytes();
  plan.lower_bound_bytes = in.lower_bound_bytes();
  try {
    ReadBuffers(in, plan);
    ReadCode(in, plan);
    ReadSteps(in, plan);
    ReadInterface(in, plan);
    // A plan that parses can be invalid. That is an error in the file (kGraph).
    VerifyPlan(plan);
  } catch (const Error& error) {
    ThrowError(ErrorCode::kGraph, fmt::format("plan: {}", error.what()));
  }
  return plan;
}

}  // namespace fusor::codegen
