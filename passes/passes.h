#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/target/autotune_results.h"
#include "ir/target/target.h"
#include "passes/collectives/bucket_partition.h"
#include "passes/rewrite_hook.h"

namespace fusor::passes {

// passes/training/optimizer_rules.cc has the formulas.
enum class OptimizerKind {
  kSgd,
  // You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks",
  // 2017.
  kLars,
  kAdam,       // Kingma and Ba, 2015
  kAdamW,      // Loshchilov and Hutter, "Decoupled Weight Decay", 2019
  kRmsprop,    // as in PyTorch
  kRmspropTf,  // as in TensorFlow
  // You et al., "Large Batch Optimization for Deep Learning: Training BERT in
  // 76 minutes", 2020.
  kLamb,
};

// Returns the name in Settings: "sgd", "lars", "adam", "adamw", "rmsprop",
// "rmsprop-tf" or "lamb".
std::string_view OptimizerName(OptimizerKind kind);
std::vector<std::string> OptimizerNames();
// Throws kUsage for any other name.
OptimizerKind ParseOptimizer(std::string_view name);

// Parameters with settings of their own: those whose name contains a match.
struct ParameterGroup {
  std::string pattern;                   // ECMAScript regular expression
  double lr_scale = 1;                   // factor of the learning rate
  std::optional<double> weight_decay{};  // replaces the optimizer's
};

// Defaults are PyTorch's.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;       // SGD, LARS, RMSprop
  bool nesterov = false;       // SGD, LARS
  double beta1 = 0.9;          // decay of the first moment: Adam, AdamW, LAMB
  double beta2 = 0.999;        // decay of the second moment: Adam, AdamW, LAMB
  double alpha = 0.99;         // decay of the second moment: RMSprop
  double eps = 1e-8;           // positive; all but SGD and LARS
  double weight_decay = 1e-4;  // of weights
  double norm_weight_decay = 0;  // of normalisation parameters and biases
  // SGD: p -= lr*wd*p, not g += wd*p.
  bool decoupled_weight_decay = false;
  double lars_coefficient = 0.001;  // trust coefficient
  double clip_norm = 0;             // global gradient norm; 0: no clipping
  double ema_decay = 0;  // of the moving average of parameters; 0: off
  // A parameter belongs to the first group that matches its name, or to none.
  std::vector<ParameterGroup> groups{};
};

// Returns whether the optimizer has the option that flag `flag` sets, such as
// "momentum". True for options of all optimizers.
bool HasOption(OptimizerKind kind, std::string_view flag);

// Mixed precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
struct PrecisionOptions {
  // f16 or bf16: dtype of allowed ops. f32: no mixed precision.
  ir::DType dtype = ir::DType::kF32;
  // Names of ops to move to the allow or the deny list.
  std::set<std::string> allow, deny;
  // Communication dtype of gradients, in which the all-reduce also adds them
  // up. Gradients of normalisation parameters keep theirs. Unset: `dtype`.
  std::optional<ir::DType> wire;
  // On one rank, too: rounds gradients to `dtype`.
  bool narrow_gradients = false;
};

// Loss scaling keeps small gradients from underflowing in 16 bit (Micikevicius
// et al., section 3.2). The scale is state on the device.
struct LossScaleOptions {
  double initial = 1;    // the first scale; static: the only one
  bool dynamic = false;  // adapts the scale; skips updates after overflow
  int64_t growth_interval = 2000;  // consecutive steps without overflow
  double growth_factor = 2;
  double backoff_factor = 0.5;
  double floor = 1;
  double ceiling = 0x1p24;

  bool scales() const { return dynamic || initial != 1; }
};

// How a training program uses the gradients of its batch.
enum class MicroBatches {
  kNone,    // updates the parameters with them
  kAdd,     // adds them to those of earlier micro-batches
  kFinish,  // updates with the mean over all micro-batches
};

// How batch normalisation runs in training. From kStatistics on, each level
// includes the previous one. If the target's library lacks such a convolution,
// kernels do the work.
enum class NormLowering {
  // On GPUs in f16 kGradients where the library has such convolutions, except
  // statistics of convolutions on few channels. Otherwise kKernels.
  kAuto,
  kSeparate,    // one unfused kernel per direction
  kKernels,     // generated kernels, fused with their neighbours
  kStatistics,  // the preceding convolution sums up the statistics
  // The convolution that computes the upstream data gradient applies the ReLU's
  // mask and sums up the normalisation's gradient.
  kGradients,
  // ReLU, no residual add: the convolutions that read the result apply the
  // normalisation. The result is not stored.
  kPrologues,
  // ReLU and residual add: one of the convolutions that read the result applies
  // the normalisation and stores the result for the other readers.
  kJoins,
};

// Layout and offset of a tensor in a state store that programs share.
struct StatePlace {
  ir::Layout layout;
  int64_t offset = 0;  // bytes
};

struct PassOptions {
  bool fusion = true;           // enables passes with PassEntry::fusion
  bool eager_rounding = false;  // round at every op inside a fusion
  bool winograd = true;         // allow it for 3x3 stride-1 convolutions
  NormLowering norm_lowering = NormLowering::kKernels;
  bool keep_gradients = false;  // as outputs "grad/<parameter>"
  PrecisionOptions precision;
  ir::AutotuneResults choices;  // autotuned; otherwise the target's heuristics
  OptimizerOptions optimizer;
  LossScaleOptions loss_scale;
  MicroBatches micro_batches = MicroBatches::kNone;
  // By input name, where existing state is stored: for a program compiled
  // against an existing state store.
  std::map<std::string, StatePlace> state_places;
  int world_size = 1;    // ranks that train together
  BucketPolicy buckets;  // how gradients are bucketed
  // Each rank updates one shard of the parameters and stores only that shard's
  // optimizer state.
  bool shard_optimizer = false;
  // Estimated cost of an all-reduce, for `buckets`: 1 ms + 1 ns per byte.
  CollectiveCost collective_cost{{{1e-3, 1e-9}}};
  std::set<std::string> disabled;       // pass names
  std::set<std::string> only;           // empty: all that are not disabled
  std::map<std::string, int64_t> fuel;  // pass name -> rewrites left
  RewriteHookFactory hook{};            // see passes/rewrite_hook.h
};

// A decision of a pass and its reason, for dumps and `compare`. Times are
// estimates. Without the decision the time would be modelled_ns + saved_ns.
struct Decision {
  std::string pass;
  std::string subject;  // value or node names
  bool accepted = false;
  std::string reason;
  int64_t saved_ns = 0;
  int64_t modelled_ns = 0;  // of the result of the decision; 0: not estimated
  ir::Location location;    // of the subject; of two subjects, the later
};

// One rewrite that a pass made, or was about to make when it failed.
struct Application {
  std::string pass;
  std::string subject;    // the value that is rewritten
  ir::Location location;  // of that value
};

// The record of one pass that ran.
struct PassTrace {
  std::string pipeline;  // name of the stage; "named" for RunPasses
  std::string name;
  int index = 0;  // in Pipeline(); for RunPasses among all passes run
  bool changed = false;
  double ms = 0;  // duration of the pass alone
  size_t nodes_before = 0;
  size_t nodes_after = 0;
  // Why the pass failed, or what the verifier found; empty if neither.
  std::string error;
};

// State that passes share during one compilation.
class PassContext {
 public:
  PassContext(const ir::TargetQueries& target, PassOptions options);

  const ir::TargetQueries& target() const { return target_; }
  const PassOptions& options() const { return options_; }

  // Passes call this before each rewrite. Returns false if `pass` has used up
  // its fuel. `subject` is the value that the rewrite replaces, removes or is
  // named after.
  bool ConsumeFuel(const std::string& pass, const ir::Value& subject);
  // The rewrites that ConsumeFuel allowed, in order, and the first one that it
  // rejected.
  const std::vector<Application>& applications() const { return applications_; }
  const std::optional<Application>& rejected() const { return rejected_; }
  // Calls the hook after `pass` has run. Returns true if the hook changed the
  // graph.
  bool RunHook(const std::string& pass, ir::Graph& graph);

  void Record(Decision decision) { decisions_.push_back(std::move(decision)); }
  const std::vector<Decision>& decisions() const { return decisions_; }
  // Named counters: "bn_relu", "weight_repacks", ...
  std::map<std::string, int64_t>& counters() { return counters_; }
  // The passes run so far, written by RunPipeline and RunPasses.
  std::vector<PassTrace>& traces() { return traces_; }

 private:
  const ir::TargetQueries& target_;
  PassOptions options_;
  std::vector<Decision> decisions_;
  std::map<std::string, int64_t> counters_;
  std::vector<PassTrace> traces_;
  std::vector<Application> applications_;
  std::optional<Application> rejected_;
  const std::unique_ptr<RewriteHook> hook_;  // may be null
};

// Every pass returns true if it changed the graph, and leaves a graph that
// passes the verifier. Pipeline() has the order in which they run.

// Folds constants, removes identities (x*1, cast to the same dtype, empty
// reshape, transpose of transpose, broadcast of a broadcast constant), merges
// equal pure nodes and erases unused ones, until nothing changes, with a bound.
// All outputs stay bit-identical: x+0 is kept because -0+0 is 0.
bool Simplify(ir::Graph& graph, PassContext& context);

// Replaces concatenations of parts of one tensor by selections and transposes;
// see rewrite_concats.cc. All outputs stay bit-identical. Counts
// rewritten_concats.
bool RewriteConcats(ir::Graph& graph, PassContext& context);

// Rewrites batch_norm_train -> [add] -> relu, with single-use values, into one
// node with `residual` and `relu` attributes. Runs before differentiation.
// Counts bn_relu, bn_add_relu and, within the latter, dual_bn_add_relu. Records
// a rejection reason if a normalisation is not fused with its ReLU.
bool FuseNormActivation(ir::Graph& graph, PassContext& context);

// Appends the gradients of output "loss", times the loss scale, with respect to
// every parameter, as outputs "grad/<parameter>", each after an all_reduce.
// Then erases nodes that only differentiation needed (stop_gradient,
// custom_gradient). A
// parameter that the loss does not depend on gets no gradient. Throws kGraph if
// there is no output "loss" or no parameter.
bool Autodiff(ir::Graph& graph, PassContext& context);

// Replaces stop_gradient and custom_gradient by their operand, for graphs that
// are not differentiated.
bool DropStopGradient(ir::Graph& graph, PassContext& context);

// Adds gradients to state "accumulated/<parameter>", role accumulator, before
// their all_reduce. kAdd stops there, without gradient outputs. State
// "accumulated/batches" counts the micro-batches.
bool AccumulateGradients(ir::Graph& graph, PassContext& context);

// Casts gradients to the communication dtype (PrecisionOptions::wire,
// narrow_gradients) before the all_reduce. Throws kUsage if it is not f32, f16
// or bf16.
bool CompressGradients(ir::Graph& graph, PassContext& context);

// ZeRO stage 1, with PassOptions::shard_optimizer and several ranks. Replaces
// the all_reduce of all but small gradients by a reduce_scatter. State
// "shard/<parameter>" is this rank's shard of the parameter. OptimizerUpdate
// updates the shard, then all ranks all-gather the parameter. Gradient norms
// and finiteness checks are combined by an all_gather of one scalar per rank.
// Counts sharded_parameters.
bool ShardOptimizer(ir::Graph& graph, PassContext& context);

// Multiplies the gradient outputs by one scalar, unless it is 1. It divides by
// the loss scale, the number of ranks and the number of micro-batches, and
// clips as torch.nn.utils.clip_grad_norm_ does:
//
//   norm = sqrt(sum of squares of all gradients)       output "gradient_norm"
//   gradient *= min(1, clip_norm / (norm + 1e-6))
//
// With a dynamic loss scale, output "gradients_finite" is true if all gradients
// are finite.
bool ScaleGradients(ir::Graph& graph, PassContext& context);

// Replaces the gradient outputs by updates by the rule of
// OptimizerOptions::kind. The updates are outputs that alias the parameters and
// the optimizer's state, e.g. "momentum/<parameter>", in the order in which
// gradients become ready. Adds input "lr", an f32 scalar. State
// "optimizer_updates", for optimizers that correct a bias, counts the updates.
// Weight decay depends on the parameter's role. With ema_decay, state
// "ema/<parameter>" is the parameter's moving average as in
// torch.optim.swa_utils.AveragedModel: its first value is the parameter after
// the first update. With keep_gradients the gradient outputs stay.
bool OptimizerUpdate(ir::Graph& graph, PassContext& context);

// With a dynamic loss scale: if a gradient is not finite, all state outputs
// except accumulated gradients keep their old values, running statistics
// included, and the scale shrinks. Otherwise the scale grows after
// growth_interval consecutive finite steps.
// Counts overflows and finite steps in state; ir/state_names.h has the names.
bool SkipOverflow(ir::Graph& graph, PassContext& context);

// Moves the mask of the gradient of relu -> max_pool to the pooled size:
// select(y > 0, max_pool_grad(dp), 0) = max_pool_grad(select(p > 0, dp, 0)),
// bit-identical.
bool MaskPooledGradient(ir::Graph& graph, PassContext& context);

// Computes in PrecisionOptions::dtype the ops that the op registry's precision
// rules allow. Inserts casts between 16-bit and f32 ops, one per value and
// direction.
// Parameters, statistics, gradients of parameters and the optimizer stay f32. A
// convolution stays f32 if PassOptions::choices, or else the target's estimated
// times, find f32 faster (Winograd), casts included; see FasterInF32. Counts
// casts_narrow, casts_wide, allowed_16 and allowed_f32, and records a decision
// with a location for each. Throws kUsage for unknown op names.
bool MixedPrecision(ir::Graph& graph, PassContext& context);

// Chooses the algorithm and layouts of every library op among the target's
// candidates (ChooseCandidate), assigns layouts to all values, fixes the layout
// of state permanently, and inserts a `copy` node between different layouts
// (counters activation_copies, weight_repacks, state_copies). With
// PassOptions::choices, counts convolutions, and in chosen_convolutions those
// with a choice.
bool AssignLayout(ir::Graph& graph, PassContext& context);

// Fuses the ReLU that alone reads a conv2d into its call (ir/library_fusion.h),
// if the target's library computes both by the same algorithm in the same
// layouts. Runs after differentiation. Counts conv_relu.
bool FuseConvEpilogue(ir::Graph& graph, PassContext& context);

// Fuses what alone reads a matmul into its call: the addition of a vector to
// its rows, and a ReLU, if the target's library has such a matmul. Fuses no
// addition with eager rounding. Runs after differentiation. Counts matmul_bias
// and matmul_relu.
bool FuseMatmulEpilogue(ir::Graph& graph, PassContext& context);

// Caches cast weights: library ops read weights and biases that mixed precision
// narrows from state that stores them narrowed (ir/weight_copy.h), instead of
// casting and repacking them in every step. The state has role weight_copy. Its
// next value is the weight's update, rounded the same way. A program that does
// not update the weights, or is compiled against existing state, uses only
// copies that exist in that state. Counts weight_copies, and subtracts the
// saved copies from weight_repacks.
bool CacheWeightCasts(ir::Graph& graph, PassContext& context);

// Prefetches sharded parameters: moves their all-gather from the end of a step
// to the start of the next, overlapped with the forward pass. A step then
// starts from the shards that the previous step updated. Readers of a parameter
// or of a copy of it read the gathered value, which is 16-bit if only 16-bit
// copies are read. After the step the parameter itself has its value from the
// start of the step, or is not written at all; see
// runtime::StateStore::Show. Skips steps with several micro-batches,
// and parameters whose next value has readers other than its copies. Counts
// prefetched_gathers and, among them, narrow_gathers.
bool PrefetchParameters(ir::Graph& graph, PassContext& context);

// Fuses parts of normalisations into adjacent convolutions, as
// PassOptions::norm_lowering requests, if the target has candidates in the
// present layouts. Counts conv_statistics, conv_accumulate and, depending on
// the level, conv_norm_grad, conv_norm_prologue and conv_norm_join. Throws
// kGraph if the target rejects all rewrites of one of these kinds,
// conv_accumulate excepted, unless the level is NormLowering::kAuto.
bool FuseConvNorm(ir::Graph& graph, PassContext& context);

// Replaces batch_norm_train and batch_norm_grad by reductions and elementwise
// ops. If the preceding convolution computes sums of its result, statistics are
// computed from these, otherwise from sums shifted by an element of the same
// channel. With NormLowering::kSeparate each node becomes a separate `fusion`.
// Normalisations over several ranks use one all_gather per direction. Throws
// kGraph if their number of ranks is neither 1 nor PassOptions::world_size.
// Counts bn_relu_grad, bn_add_relu_grad and, within the latter,
// dual_bn_add_relu_grad.
bool LowerBatchNorm(ir::Graph& graph, PassContext& context);

// Rewrites sums over rows and columns of a max_pool's gradient, or of values
// linear in it, to sums at the pooled size. The result is the same, because the
// gradient is 0 except at the maxima. Operands of the sum other than the
// max_pool's own are gathered at the maxima (max_pool_gather). This requires
// that the target generates its pooling kernels (ir::kGeneratedAlgorithm).
// Skipped with eager rounding, because the summation order changes. Counts
// pooled_sums.
bool SumPooledGradient(ir::Graph& graph, PassContext& context);

// Fuses a max_pool with the elementwise producers of its operand, if the
// operand has no other reader, and with the max_pool_gathers of the same
// windows. Fuses a max_pool_grad with its elementwise readers. Does nothing
// unless the target generates its pooling kernels. Counts pool_prologues and
// pool_epilogues.
bool FusePool(ir::Graph& graph, PassContext& context);

// Generates kernels for the matmuls and 1x1 convolutions for which they are
// estimated to be faster than the library, with the elementwise nodes that they
// are fused with; see fuse_contraction.cc. Does nothing with eager rounding,
// and on CPUs where the kernels have not been measured. On GPUs, only fuses
// those that the layout pass chose. Counts contractions, contraction_prologues
// and contraction_epilogues.
bool FuseContraction(ir::Graph& graph, PassContext& context);

// On CPUs, moves reshapes from between fusible ops to library calls and inputs,
// where they are views; see move_reshapes.cc. Counts moved_reshapes.
bool MoveReshapes(ir::Graph& graph, PassContext& context);

// Slices the operands of an elementwise op instead of its result, if that is
// read only in slices; see hoist_slices.cc. Counts hoisted_slices.
bool HoistSlices(ir::Graph& graph, PassContext& context);

// Makes transposes views, where the library reads or writes matmuls in another
// order of their dimensions; see fold_transposes.cc. Counts folded_transposes.
bool FoldTransposes(ir::Graph& graph, PassContext& context);

// Groups fusible nodes into `fusion` nodes; see fuse.cc for the algorithm. With
// fusion off, only merges nodes that are free to recompute into their consumer.
bool Fuse(ir::Graph& graph, PassContext& context);

// With several ranks: reorders the graph so that gradients are ready early and
// consumers of reduced gradients run last. Joins the all_reduces of gradients
// into buckets according to PassOptions::buckets, one dtype per collective,
// each placed after its last gradient. Buckets the all_gathers at the start of
// the step (PrefetchParameters) the same way, in the order of need. Counts
// gradient_buckets and parameter_buckets.
bool BucketGradients(ir::Graph& graph, PassContext& context);

// Joins update fusions of equal structure and hyper-parameters, and of one
// gradient bucket, into one launch over contiguous state. The launch also
// writes the cached casts of its weights. Sorts the operands of the bucket's
// all_reduce in the order of those launches.
bool FuseUpdates(ir::Graph& graph, PassContext& context);

// Wraps library ops that the target leaves to generated kernels
// (ir::kGeneratedAlgorithm), i.e. pooling and layout copies, in a fusion each.
// Counts generated_kernels.
bool GenerateKernels(ir::Graph& graph, PassContext& context);

// On one rank, replaces collectives by their operands. Throws kGraph for a
// collective over several ranks.
bool DropCollectives(ir::Graph& graph, PassContext& context);

// "separate", "kernels", "statistics", "gradients", "prologues", "joins".
std::string_view NormLoweringName(NormLowering lowering);
// Throws kUsage for any other name.
NormLowering ParseNormLowering(std::string_view name);

// Returns the options that affect the compiled training step as KEY=VALUE words
// separated by blanks, in a fixed order. Excludes the hook, and choices, which
// the plan records as a hash.
std::string Settings(const PassOptions& options);

}  // namespace fusor::passes
