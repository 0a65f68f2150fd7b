#include "tools/inspect/logs/speed_log.h"

#include <gmock/gmock.h>

#include "ir/support/error.h"
#include "tests/testing/damage.h"
#include "tests/testing/speed_lines.h"

namespace fusor::inspect {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<int64_t> Ends(const SpeedLog& log) {
  std::vector<int64_t> ends;
  for (const SpeedRecord& record : log.records) ends.push_back(record.end);
  return ends;
}

TEST(SpeedLog, ReadsDllLoggerAndSkipsItsOtherLines) {
  const SpeedLog log = ParseSpeedLog(
      "=> creating model '('resnet50', 'fanin', 1000)'\n"
      "DLL 2020-09-15 14:28:53.498443 - PARAMETER data : D  lr : 1.0 \n"
      "DLL 2020-09-15 14:29:13.473765 - Epoch: 0 Iteration: 1  train.loss : "
      "7.09304  train.total_ips : 267.44 img/s\n"
      "DLL 2020-09-15 14:29:14.427490 - Epoch: 0 Iteration: 2  train.loss : "
      "6.93504  train.total_ips : 4294.91 img/s\n"
      "DLL 2020-09-15 14:29:20.000000 - Epoch: 0  val.top1 : 1.00 %\n"
      "DLL 2020-09-15 14:29:21.250000 - Epoch: 1 Iteration: 1  train.loss : "
      "6.8  train.total_ips : 4000.5 img/s\n",
      "log");
  EXPECT_EQ(log.format, "DLLogger");
  EXPECT_THAT(Ends(log), ElementsAre(1, 2, 3));
  EXPECT_EQ(log.records[0].begin, 0);
  EXPECT_EQ(log.records[1].images_per_second, 4294.91);
  EXPECT_NEAR(log.records[1].time - log.records[0].time, 0.953725, 1e-5);
  EXPECT_EQ(log.records[2].begin, 2);
  EXPECT_EQ(log.window.skip, 20);
  EXPECT_EQ(log.window.average, 100);
}

TEST(SpeedLog, ReadsDllLoggersJson) {
  const SpeedLog log = ParseSpeedLog(
      R"(DLLL {"timestamp":"1.0","datetime":"2020-09-15 14:29:13.5",)"
      R"("elapsedtime":"0.1","type":"METADATA","metric":"lr","metadata":{}})"
      "\n"
      R"(DLLL {"timestamp":"1.0","datetime":"2020-09-15 14:29:13.500000",)"
      R"("type":"LOG","step":[0,5],"data":{"train.loss":7.0,)"
      R"("train.total_ips":100.5,"lr":0.1}})"
      "\n"
      R"(DLLL {"datetime":"2020-09-15 14:29:15.500000","type":"LOG",)"
      R"("step":[0,10],"data":{"train.total_ips":"200.5"}})"
      "\n"
      R"(DLLL {"datetime":"x","type":"LOG","step":[],)"
      R"("data":{"train.total_ips":150}})"
      "\n"
      R"(DLLL {"type":"LOG","step":[0,"x"],"data":7})"
      "\nDLLL {cut off",
      "log");
  EXPECT_EQ(log.format, "DLLogger JSON");
  EXPECT_THAT(Ends(log), ElementsAre(5, 10));
  EXPECT_EQ(log.records[0].begin, 0);
  EXPECT_EQ(log.records[1].images_per_second, 200.5);
  EXPECT_EQ(log.records[1].time - log.records[0].time, 2);
}

TEST(SpeedLog, ReadsTensorFlowsDllLogger) {
  const SpeedLog log = ParseSpeedLog(
      "DLL 2020-08-01 10:00:00.000000 - (0, 21) imgs_per_sec : 2700.5  "
      "cross_entropy : 7.1  l2_loss : 0.4  total_loss : 7.5 \n"
      "DLL 2020-08-01 10:00:00.500000 - (0, 22) imgs_per_sec : 2710.25  "
      "cross_entropy : 7.1  l2_loss : 0.4  total_loss : 7.5 \n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(21, 22));
  EXPECT_EQ(log.records[0].begin, 20);
  EXPECT_EQ(log.records[0].images_per_second, 2700.5);
  EXPECT_FALSE(log.summary);

  const SpeedLog benchmark = ParseSpeedLog(
      "DLL 2021-03-23 11:48:38.824370 - (0, 120) total_ips : "
      "2879.142978189404 \n",
      "log");
  EXPECT_TRUE(benchmark.summary);
  EXPECT_EQ(benchmark.records[0].images_per_second, 2879.142978189404);
}

TEST(SpeedLog, ReadsMxNetsLinesOfOneRankOrMore) {
  const SpeedLog gluon = ParseSpeedLog(
      "Epoch[0] Batch [49]\tSpeed: 801.173036 samples/sec\taccuracy=0.001\n"
      "INFO:root:Epoch[0] Batch[99]\tSpeed: 820.50 samples/sec\n",
      "log");
  EXPECT_EQ(gluon.format, "MXNet");
  EXPECT_THAT(Ends(gluon), ElementsAre(50, 100));
  EXPECT_EQ(gluon.records[0].begin, 0);
  EXPECT_EQ(gluon.records[1].begin, 50);
  EXPECT_EQ(gluon.records[0].time, -1);

  const SpeedLog ranks = ParseSpeedLog(
      "2020-09-01 10:00:00,100:INFO: Epoch[0] Batch [0-0]\tSpeed: 900.00 "
      "samples/sec\tLR: 0.1\n"
      "2020-09-01 10:00:01,100:INFO: Epoch[0] Batch [1-1]\tSpeed: 950.00 "
      "samples/sec\tLR: 0.1\n"
      "2020-09-01 10:00:00,200:INFO: Epoch[0] Batch [0-0]\tSpeed: 910.00 "
      "samples/sec\tLR: 0.1\n",
      "log");
  EXPECT_THAT(Ends(ranks), ElementsAre(1, 2));
  EXPECT_EQ(ranks.records[0].images_per_second, 905);
  EXPECT_NEAR(ranks.records[1].time - ranks.records[0].time, 0.9, 1e-5);
}

TEST(SpeedLog, ReadsPaddlesTimeOfAStep) {
  const SpeedLog old = ParseSpeedLog(
      "2020-04-26 18:11:14,577-INFO: [Pass 0, train batch 10]  loss 59.52795, "
      "acc1 0.00000, acc5 0.00000, lr 0.10000, elapse 0.1612 sec\n"
      "2020-04-26 18:11:16,148-INFO: [Pass 0, train batch 20]  loss 59.34349, "
      "acc1 0.00000, acc5 0.00000, lr 0.10000, elapse 0.1568 sec\n",
      "log");
  EXPECT_EQ(old.format, "Paddle");
  EXPECT_THAT(Ends(old), ElementsAre(11, 21));
  EXPECT_EQ(old.records[1].step_seconds, 0.1568);
  EXPECT_NEAR(old.records[1].time - old.records[0].time, 1.571, 1e-5);

  const SpeedLog later = ParseSpeedLog(
      "INFO:utils.utility:[Pass 0, train batch 10]   loss 21.68535, lr 0.1, "
      "batch_cost 0.13110 sec, reader_cost 0.00069 sec, ips 976.3 "
      "images/sec\n",
      "log");
  EXPECT_EQ(later.records[0].step_seconds, 0.1311);
  EXPECT_EQ(later.records[0].time, -1);
}

TEST(SpeedLog, ReadsFleetXsSpeedOfOneRank) {
  const SpeedLog log = ParseSpeedLog(
      "worker_index: 0, step0 cost = 6.895311, speed: 12.192901\n"
      "worker_index: 0, step1 cost = 6.964077, speed: 412.116618\n"
      "worker_index: 1, step1 cost = 6.96, speed: 412.0\n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(1, 2));
  EXPECT_NEAR(log.records[1].rank_images_per_second, 412.058309, 1e-9);
  const SpeedLog fit = ParseSpeedLog(
      "epoch id: 0, step3, train_loss: 6.9, total time cost = 2.5, step per "
      "second: 1.6, speed: 51.2\n",
      "log");
  EXPECT_EQ(fit.records[0].rank_images_per_second, 51.2);
}

TEST(SpeedLog, ReadsTimeHistoryAcrossMidnight) {
  const SpeedLog log = ParseSpeedLog(
      "I0826 23:59:00.000000 1 keras_utils.py:133] TimeHistory: 116.24 "
      "seconds, 110.12 examples/second between steps 0 and 100\n"
      "I0826 23:59:40.500000 1 keras_utils.py:133] TimeHistory: 39.13 seconds, "
      "327.08 examples/second between steps 100 and 200\n"
      "I0827 00:00:20.000000 1 keras_utils.py:133] TimeHistory: 39.40 seconds, "
      "324.90 examples/second between steps 200 and 300\n"
      "600/600 - 239s - loss: 10.4633 - accuracy: 0.1303\n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(100, 200, 300));
  EXPECT_EQ(log.records[1].begin, 100);
  EXPECT_EQ(log.records[1].images_per_second, 327.08);
  EXPECT_EQ(log.records[2].time - log.records[1].time, 39.5);
  EXPECT_EQ(log.window.skip, 100);
  EXPECT_EQ(log.window.average, 500);
}

TEST(SpeedLog, ReadsOneFlowsTrainingLines) {
  const SpeedLog log = ParseSpeedLog(
      "validation: epoch 47, iter 125, top_1: 0.76, top_k: 0.92, samples/s: "
      "2173.505 1599761642.6572137\n"
      "train: epoch 48, iter 100, loss: 1.872034, top_1: 0.777363, top_k: "
      "0.921133, samples/s: 2897.681 1599761677.5\n"
      "train: epoch 48, iter 200, loss: 1.907133, top_1: 0.776045, top_k: "
      "0.921221, samples/s: 2946.417 1599761712.5\n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(100, 200));
  EXPECT_EQ(log.records[1].time - log.records[0].time, 35);
  const SpeedLog bare = ParseSpeedLog(
      "train: epoch 0, iter 20, loss: 6.5, top_1: 0.0, top_k: 0.0, samples/s: "
      "288.088\n",
      "log");
  EXPECT_EQ(bare.records[0].time, -1);
  EXPECT_EQ(bare.records[0].images_per_second, 288.088);
}

TEST(SpeedLog, ReadsTheTimesOfImagenetDdpApex) {
  const SpeedLog log = ParseSpeedLog(
      "Epoch: [0][0/100]\tTime 9.1 (9.1)\tThroughput 28 (28)\tLoss 7.1 (7.1)\n"
      "Epoch: [0][10/100]\tTime 0.25 (1.1)\tThroughput 1024 (900)\n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(1, 11));
  EXPECT_EQ(log.records[1].step_seconds, 0.25);
}

TEST(SpeedLog, ReadsFusorsOwnLines) {
  const SpeedLog text = ParseSpeedLog(
      "resnet50-v1.5 on AMD EPYC, AVX-512 with bf16, 2 threads\n"
      "epoch   0  iteration     10/100  loss 2.3120    47.36 images/s  lr 0.1  "
      "data wait 0.0 %\n"
      "epoch   0  iteration     20/100  loss 2.3000  1047.50 images/s  lr 0.1  "
      "data wait 0.0 %  read 2.10 MB/s, 20 files/s\n"
      "epoch   0  val top1 42.50 %  top5 100.00 %  loss 1.1920  (40 images)\n",
      "log");
  EXPECT_EQ(text.format, "fusor");
  EXPECT_THAT(Ends(text), ElementsAre(10, 20));
  EXPECT_EQ(text.records[0].images_per_second, 47.36);
  EXPECT_EQ(text.records[1].images_per_second, 1047.5);

  const SpeedLog lines = ParseSpeedLog(
      R"({"type":"start","step":0,"batch_size":4,"time":1.0})"
      "\n"
      R"({"type":"step","step":1,"epoch":0,"loss":2.1,"lr":0.1,"seconds":0.5,)"
      R"("images_per_second":8.5,"time":1000.5})"
      "\n"
      R"({"type":"step","step":2,"images_per_second":9.0,"time":1001.0})"
      "\n",
      "log");
  EXPECT_EQ(lines.format, "fusor JSON Lines");
  EXPECT_THAT(Ends(lines), ElementsAre(1, 2));
  EXPECT_EQ(lines.records[1].time, 1001);
}

// Two ranks with 20 steps per epoch.
TEST(SpeedLog, ReadsMindSporesEpochs) {
  const SpeedLog log = ParseSpeedLog(
      "epoch: 1 step: 20, loss is 6.9\n"
      "epoch: 1 step: 20, loss is 6.8\n"
      "epoch time: 61250.500 ms, per step time: 3062.525 ms\n"
      "epoch time: 61249.500 ms, per step time: 3062.475 ms\n"
      "epoch: 2 step: 20, loss is 6.7\n"
      "epoch: 2 step: 20, loss is 6.6\n"
      "epoch time: 7000.000 ms, per step time: 350.000 ms\n"
      "epoch time: 7200.000 ms, per step time: 360.000 ms\n",
      "log");
  EXPECT_EQ(log.format, "MindSpore");
  EXPECT_THAT(Ends(log), ElementsAre(20, 40));
  EXPECT_EQ(log.records[1].begin, 20);
  EXPECT_NEAR(log.records[0].step_seconds, 3.0625, 1e-9);
  EXPECT_NEAR(log.records[1].time - log.records[0].time, 7.1, 1e-9);
  EXPECT_EQ(log.window.skip, 100);
  EXPECT_EQ(log.window.average, 100);
  // The format of MindSpore 2. Lines of single steps are not epochs.
  const SpeedLog newer = ParseSpeedLog(
      "epoch: 41 step: 999, loss is 1.5\n"
      "epoch: 41 step: 1000, loss is 1.4\n"
      "Train epoch time: 6512.500 ms, per step time: 6.513 ms\n",
      "log");
  EXPECT_THAT(Ends(newer), ElementsAre(1000));
  EXPECT_NEAR(newer.records[0].step_seconds, 6.5125e-3, 1e-9);
}

TEST(SpeedLog, CountsOverflowsThatApexReports) {
  const std::string overflow =
      "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to "
      "32768.0\n";
  EXPECT_THAT(
      [&] { ParseSpeedLog(overflow + overflow, "some.log"); },
      ThrowsMessage<Error>(HasSubstr("some.log: no line contains a speed "
                                     "(found 2 of a gradient overflow); "
                                     "supported formats: DLLogger JSON, ")));
  const SpeedLog log = ParseSpeedLog(
      overflow + "train: epoch 0, iter 20, loss: 6, samples/s: 288.0\n", "x");
  EXPECT_EQ(log.overflows, 1);
}

TEST(SpeedLog, IgnoresOtherText) {
  for (const std::string& text :
       {std::string(), std::string("\n\n"), std::string("Speed: fast\n"),
        std::string("TimeHistory: 3 seconds\n"), std::string(1 << 20, '('),
        std::string("\0\xff\n", 3)}) {
    EXPECT_THROW(ParseSpeedLog(text, "x"), Error);
  }
}

TEST(SpeedLog, SkipsImpossibleNumbers) {
  const SpeedLog log = ParseSpeedLog(
      "train: epoch 0, iter 100, loss: 6, samples/s: 288.0 1000.5\n"
      "train: epoch 0, iter 9223372036854775807, loss: 6, samples/s: 1.0 7.5\n"
      "train: epoch 99999999999999999999, iter 1, loss: 6, samples/s: 1.0\n"
      "train: epoch 0, iter 200, loss: 6, samples/s: 1e999 1001.5\n"
      "train: epoch 0, iter 300, loss: 6, samples/s: 290.0 1002.5\n",
      "log");
  EXPECT_THAT(Ends(log), ElementsAre(100, 300));
  EXPECT_THROW(ParseSpeedLog("I0826 23:59:00.000000 1 a] TimeHistory: 1 s, "
                             "110.12 examples/second between steps 100 and 0",
                             "x"),
               Error);
  for (
      const char* line :
      {R"({"type":"step","step":1e300,"images_per_second":8.5,"time":1.5})",
       R"({"type":"step","step":-1,"images_per_second":8.5,"time":1.5})",
       R"(DLLL {"type":"LOG","step":[1e300,5],"data":{"train.total_ips":9}})",
       R"(DLLL {"type":"LOG","step":[0,5],"data":{"train.total_ips":"nan"}})"}) {
    EXPECT_THROW(ParseSpeedLog(line, "x"), Error) << line;
  }
}

TEST(SpeedLog, CorruptLinesAreReadOrRejected) {
  int accepted = 0;
  int rejected = 0;
  for (const std::string line : test::kSpeedLines) {
    const auto counts = test::ReadDamaged(
        line + line, 300, ErrorCode::kData, [](const std::string& text) {
          for (const SpeedRecord& record : ParseSpeedLog(text, "x").records) {
            EXPECT_GE(record.begin, 0) << text;
            EXPECT_LE(record.begin, record.end) << text;
            EXPECT_GE(record.images_per_second, 0) << text;
            EXPECT_GE(record.step_seconds, 0) << text;
          }
        });
    accepted += counts.accepted;
    rejected += counts.rejected;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 100);
}

}  // namespace
}  // namespace fusor::inspect
