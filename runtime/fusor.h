#pragma once

// The public interface: what a program needs to build a graph, compile and run
// it, train, save and load state, and observe steps. README.md, "Your own
// model", lists its names. The built-in models are in models/model.h.

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/backend/communicator.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/datasets/image_folder.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/data/loader.h"
#include "runtime/program.h"
#include "runtime/program_file.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "runtime/step_observer.h"
#include "runtime/train/training_loop.h"
