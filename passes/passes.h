#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/target/autotune_results.h"
#include "ir/target/target.h"
#include "passes/collectives/bucket_partition.h"
#include "passes/fault.h"

namespace fusor::passes {

enum class OptimizerKind {
  kSgd,
  // You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks",
  // 2017.
  kLars,
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;    // of weights
  double norm_weight_decay = 0;  // of normalisation parameters and biases
  bool decoupled_weight_decay = false;  // p -= lr*wd*p, not g += wd*p
  double lars_coefficient = 0.001;      // trust in a layer's rate
  double clip_norm = 0;  // of all gradients together; 0: no clipping
  double ema_decay = 0;  // of the moving average of parameters; 0: none
};

// Mixed precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
struct PrecisionOptions {
  // f16 or bf16: what allowed ops compute in; f32: no mixed precision.
  ir::DType dtype = ir::DType::kF32;
  // Ops, by name, moved to the allow or the deny list.
  std::set<std::string> allow, deny;
  // What several ranks send gradients and add them up in, but for those of
  // normalisations; unset: `dtype`.
  std::optional<ir::DType> wire;
  // One rank rounds gradients to `dtype`, too.
  bool narrow_gradients = false;
};

// Gradients too small for 16 bit are saved by multiplying the loss
// (Micikevicius et al., section 3.2). The scale is state on the device.
struct LossScaleOptions {
  double initial = 1;    // of a static scale: for good
  bool dynamic = false;  // adapts, and skips the update after an overflow
  int64_t growth_interval = 2000;  // steps without overflow
  double growth_factor = 2;
  double backoff_factor = 0.5;
  double floor = 1;
  double ceiling = 0x1p24;

  bool scales() const { return dynamic || initial != 1; }
};

// What a training program does with the gradients of its batch.
enum class MicroBatches {
  kNone,    // updates with them
  kAdd,     // adds them to those of earlier micro-batches
  kFinish,  // updates with the mean of them and those that were added
};

// How batch normalisation in training runs: each does what the one before it
// does, and more. Where the target's library has no such convolution, that is
// left to kernels.
enum class NormLowering {
  kSeparate,    // a kernel each way, apart from what is around it
  kKernels,     // generated kernels, which fusion joins to what is around them
  kStatistics,  // the convolution before it sums up its statistics
  // The data gradient that arrives is masked by its ReLU, and summed up for its
  // gradient, by the convolution that computes it.
  kGradients,
  // With a ReLU and without an addition it is applied by the convolutions that
  // read it, and stored nowhere.
  kPrologues,
  // With a ReLU and an addition it is applied by a convolution that reads it,
  // which stores it for the others.
  kJoins,
};

// What a state store that programs share has decided about one of its tensors.
struct StatePlace {
  ir::Layout layout;
  int64_t offset = 0;  // bytes
};

struct PassOptions {
  bool fusion = true;           // passes 2, 7 and 10 of DESIGN.md section 4
  bool eager_rounding = false;  // round at every op inside a fusion
  bool winograd = true;         // allow it for 3x3 stride-1 convolutions
  NormLowering norm_lowering = NormLowering::kKernels;
  bool keep_gradients = false;  // as outputs "grad/<parameter>"
  PrecisionOptions precision;
  ir::AutotuneResults choices;  // measured ones; the target's rule for the rest
  OptimizerOptions optimizer;
  LossScaleOptions loss_scale;
  MicroBatches micro_batches = MicroBatches::kNone;
  // Where state lies already, by input name: for a program compiled against an
  // existing state store.
  std::map<std::string, StatePlace> state_places;
  int world_size = 1;    // ranks that train together
  BucketPolicy buckets;  // of their gradients
  // Each updates a part of the parameters, and keeps that of their state.
  bool shard_optimizer = false;
  // Of a sum over all ranks, for the policy: 1 ms and a nanosecond a byte.
  CollectiveCost collective_cost{{{1e-3, 1e-9}}};
  std::set<std::string> disabled;       // pass names
  std::set<std::string> only;           // empty: all that are not disabled
  std::map<std::string, int64_t> fuel;  // pass name -> rewrites left
  Fault fault{};                        // for tests; else FUSOR_FAULT
};

// What a pass decided, and why: for dumps and `compare`. Times are modelled;
// without the decision it would be modelled_ns + saved_ns.
struct Decision {
  std::string pass;
  std::string subject;  // value or node names
  bool accepted = false;
  std::string reason;
  int64_t saved_ns = 0;
  int64_t modelled_ns = 0;  // of what the decision makes; 0 where not modelled
  ir::Location location;    // of the subject; of the later one of two
};

// One rewrite that a pass made, or was about to make when it failed.
struct Application {
  std::string pass;
  std::string subject;    // the value that it is about
  ir::Location location;  // of that value
};

// One pass that ran.
struct PassTrace {
  std::string pipeline;  // name of the stage; "named" for RunPasses
  std::string name;
  int index = 0;  // in Pipeline(); for RunPasses among all passes run so far
  bool changed = false;
  double ms = 0;  // of the pass alone
  size_t nodes_before = 0;
  size_t nodes_after = 0;
  // Why the pass failed, or what the verifier found; empty when all is well.
  std::string error;
};

// What passes share during one compilation.
class PassContext {
 public:
  PassContext(const ir::TargetQueries& target, PassOptions options);

  const ir::TargetQueries& target() const { return target_; }
  const PassOptions& options() const { return options_; }

  // To be asked before each rewrite; false when `pass` has used up its fuel.
  // `subject`: the value that the rewrite replaces, removes or is named after.
  bool ConsumeFuel(const std::string& pass, const ir::Value& subject);
  // What ConsumeFuel has allowed, in order, and the first that it has not.
  const std::vector<Application>& applications() const { return applications_; }
  const std::optional<Application>& refused() const { return refused_; }
  // Called by RunPipeline when `pass` has ended: what a planted fault that
  // struck in it does to the graph. True when it did something.
  bool FinishFault(const std::string& pass, ir::Graph& graph);

  void Record(Decision decision) { decisions_.push_back(std::move(decision)); }
  const std::vector<Decision>& decisions() const { return decisions_; }
  // Named counters: "bn_relu", "weight_repacks", ...
  std::map<std::string, int64_t>& counters() { return counters_; }
  // Of the passes run so far, written by RunPipeline.
  std::vector<PassTrace>& traces() { return traces_; }

 private:
  const ir::TargetQueries& target_;
  PassOptions options_;
  std::vector<Decision> decisions_;
  std::map<std::string, int64_t> counters_;
  std::vector<PassTrace> traces_;
  std::vector<Application> applications_;
  std::optional<Application> refused_;
  std::vector<std::string> struck_;  // what the fault may corrupt
};

// Every pass: true when it changed the graph, which it leaves verified. In
// pipeline order, see pipeline.cc.

// Folds constants, removes identities (x*1, cast to the same dtype, empty
// reshape, transpose of transpose, broadcast of a splat), merges equal pure
// nodes and drops unused ones, to a fixed point with a bound. No bit of any
// output changes: x+0 stays, for -0+0 is 0.
bool Simplify(ir::Graph& graph, PassContext& context);

// Rewrites batch_norm_train -> [add] -> relu of one use each into one node with
// its residual and relu attributes. Before differentiation. Counts bn_relu,
// bn_add_relu and, within the latter, dual_bn_add_relu; says why not where a
// normalisation stays apart from its ReLU.
bool FuseNormActivation(ir::Graph& graph, PassContext& context);

// Appends the gradients of output "loss", times the loss scale, with respect to
// every parameter, each through an all_reduce, as outputs "grad/<parameter>",
// and drops what differentiation alone needed (stop_gradient). A parameter that
// the loss does not depend on gets none. Throws kGraph when there is no such
// output, or no parameter.
bool Autodiff(ir::Graph& graph, PassContext& context);

// Replaces stop_gradient by its operand: for graphs that are not, or no longer,
// to be differentiated.
bool DropStopGradient(ir::Graph& graph, PassContext& context);

// Adds gradients to state "accumulated/<parameter>", role accumulator, before
// they go through the all_reduce; kAdd ends there, without gradient outputs.
// State "accumulated/batches" counts.
bool AccumulateGradients(ir::Graph& graph, PassContext& context);

// Lets the gradients go through the all_reduce in the dtype that
// PrecisionOptions::wire and narrow_gradients say. Throws kUsage for a wire
// that is none of f32, f16 and bf16.
bool CompressGradients(ir::Graph& graph, PassContext& context);

// With PassOptions::shard_optimizer, and several ranks: all but small gradients
// are summed part by part, in a reduce_scatter, and state "shard/<parameter>"
// is this rank's part of the parameter, which OptimizerUpdate updates in its
// place before all ranks gather the whole. Norms of gradients, and whether they
// are finite, are put together by an all_gather of each rank's. Counts
// sharded_parameters.
bool ShardOptimizer(ir::Graph& graph, PassContext& context);

// Multiplies the gradient outputs by the scalar that makes them those of the
// loss, unless that is 1: divides by the loss scale, the number of ranks and
// that of micro-batches, and clips as torch.nn.utils.clip_grad_norm_ does:
//
//   norm = sqrt(sum of squares of all gradients)       output "gradient_norm"
//   gradient *= min(1, clip_norm / (norm + 1e-6))
//
// With a dynamic loss scale, output "gradients_finite" says whether they all
// were finite.
bool ScaleGradients(ir::Graph& graph, PassContext& context);

// Replaces the gradient outputs by SGD updates as in torch.optim.SGD, or LARS:
// aliased outputs of the parameters and of state "momentum/<parameter>" that
// starts at 0, in the order in which the gradients become ready, with a
// learning rate input "lr", f32. Weight decay goes by role. With ema_decay,
// state "ema/<parameter>" is the parameter's moving average, as
// torch.optim.swa_utils.AveragedModel keeps it: its first value is that after
// the first update. The gradients stay, too, with keep_gradients.
bool OptimizerUpdate(ir::Graph& graph, PassContext& context);

// With a dynamic loss scale: where a gradient is not finite every state output,
// running statistics too, is the old value, and the scale shrinks; else the
// scale grows after growth_interval such steps. Counts both: see
// ir/state_names.h for the state's names.
bool SkipOverflow(ir::Graph& graph, PassContext& context);

// Masks the gradient of relu -> max_pool at the size after pooling: select(y >
// 0, max_pool_grad(dp), 0) = max_pool_grad(select(p > 0, dp, 0)), to the bit.
bool MaskPooledGradient(ir::Graph& graph, PassContext& context);

// Computes in PrecisionOptions::dtype what the op registry's precision rules
// allow, with casts at the borders: one per value and direction. Parameters,
// statistics, gradients of parameters and the optimizer stay f32. A convolution
// that PassOptions::choices, or else the target's modelled times, say to be
// faster in f32 (Winograd), casts included, keeps it: FasterInF32. Counts
// casts_narrow, casts_wide, allowed_16, allowed_f32, each a decision with its
// place. Throws kUsage for names of ops that do not exist.
bool MixedPrecision(ir::Graph& graph, PassContext& context);

// Sets the relu attribute of a conv2d that only a relu reads, where the target
// says that its library does it for nothing. After differentiation. Counts
// conv_relu.
bool FuseConvEpilogue(ir::Graph& graph, PassContext& context);

// Gives a matmul the bias operand and the relu attribute for the addition of a
// vector to its rows, and for the ReLU, that are its only readers, where the
// target's library has such a product; with eager rounding no bias. After
// differentiation. Counts matmul_bias and matmul_relu.
bool FuseMatmulEpilogue(ir::Graph& graph, PassContext& context);

// Chooses algorithm and layouts of every library op from the target's
// candidates (ChooseCandidate), assigns layouts to all values, fixes the layout
// of state for good, and inserts `copy` nodes where two layouts meet (counters
// activation_copies, weight_repacks). With choices, counts convolutions and
// chosen_convolutions, for which there was one.
bool AssignLayout(ir::Graph& graph, PassContext& context);

// Lets library ops read weights and biases that mixed precision narrows from
// state that holds them so (ir/weight_copy.h), in place of casting and
// repacking them in every step: role weight_copy, with the weight's update,
// rounded alike, as its next value. In a program that does not update the
// weights, and in one compiled against existing state, only copies that the
// state has. Counts weight_copies, and takes what it saves off weight_repacks.
bool CacheWeightCasts(ir::Graph& graph, PassContext& context);

// Of parameters of which each rank updates a part: moves what gathers them from
// the end of a step to the beginning of the next, so that it runs beside the
// forward pass. A step then begins with the parts that the last one has left,
// and what reads a parameter or a copy of it reads what was gathered of them,
// in 16 bit where it reads nothing but 16-bit copies. After it the parameter
// itself is as old as the step's beginning, or is not written at all: see
// runtime::Session::GatherParameters. Not in a step of several micro-batches,
// nor of a parameter whose next value is read by other than its copies. Counts
// rotated_gathers and, among them, narrow_gathers.
bool PrefetchParameters(ir::Graph& graph, PassContext& context);

// Lets convolutions compute what PassOptions::norm_lowering says of the
// normalisations beside them, where the target's candidates have it in the
// layouts at hand. Counts conv_statistics and, where it says so,
// conv_norm_grad, conv_norm_prologue and conv_norm_join. Throws kGraph when
// there are such places, but the target has it in none of them.
bool FuseConvNorm(ir::Graph& graph, PassContext& context);

// Replaces batch_norm_train and batch_norm_grad by reductions and elementwise
// ops: statistics from the sums of the convolution before, where it has them,
// else as sums shifted by a value of the same channel. With
// NormLowering::kSeparate each is a `fusion` of its own. Those over
// several ranks exchange sums in an all_gather each way; throws kGraph where
// they are over others than PassOptions::world_size. Counts bn_relu_grad,
// bn_add_relu_grad and, within the latter, dual_bn_add_relu_grad.
bool LowerBatchNorm(ir::Graph& graph, PassContext& context);

// Takes sums over images of a max_pool's gradient, and of what is linear in it,
// over the gradient before it is spread: it is zero but at the maxima. What
// else they read is gathered there (max_pool_gather) where the target's pooling
// is generated kernels (ir::kGeneratedAlgorithm); elsewhere such sums stay. Not
// with eager rounding, for which it is another sum. Counts pooled_sums.
bool SumPooledGradient(ir::Graph& graph, PassContext& context);

// Where the target's pooling is generated kernels: makes a fusion of a pooling,
// what leads to its operand alone, the max_pool_gathers beside it and, of a
// gradient, what alone reads it, as far as these are elementwise. Counts
// pool_prologues and pool_epilogues.
bool FusePool(ir::Graph& graph, PassContext& context);

// Groups fusible nodes into `fusion` nodes; see fuse.cc for the algorithm.
// With fusion off every fusible node gets a fusion of its own.
bool Fuse(ir::Graph& graph, PassContext& context);

// With several ranks: orders the graph so that gradients are ready early and
// what needs their sums comes last, and joins the all_reduces of gradients into
// buckets by PassOptions::buckets, of one dtype each, where their last gradient
// is ready. What is gathered at the beginning of the step (PrefetchParameters)
// is put together likewise, in the order in which it is needed. Counts
// gradient_buckets and parameter_buckets.
bool BucketGradients(ir::Graph& graph, PassContext& context);

// Joins update fusions of equal structure and hyper-parameters, and of one
// bucket of gradients, into one launch over contiguous state, which writes the
// copies of its weights, too. The operands of the bucket's all_reduce then
// stand in the order of those launches.
bool FuseUpdates(ir::Graph& graph, PassContext& context);

// Gives library ops that the target leaves to generated kernels
// (ir::kGeneratedAlgorithm), pooling and copies between layouts, a fusion of
// their own. Counts generated_kernels.
bool GenerateKernels(ir::Graph& graph, PassContext& context);

// Replaces collectives by their operands when there is one rank alone. Throws
// kGraph for an all_gather of several.
bool DropCollectives(ir::Graph& graph, PassContext& context);

}  // namespace fusor::passes
