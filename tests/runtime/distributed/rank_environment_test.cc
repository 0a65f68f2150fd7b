#include "runtime/distributed/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using ::testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

RankEnvironment Find(const Environment& environment) {
  return FindRankEnvironment([&](std::string_view name) {
    const auto found = environment.find(std::string(name));
    return found == environment.end() ? "" : found->second;
  });
}

std::string Rejection(const Environment& environment) {
  try {
    Find(environment);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

// Rank 5 of 8 on the second of two hosts.
const Environment kTorchrun{{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_PORT", "29400"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "a"}};

TEST(RankEnvironment, Horovodrun) {
  const RankEnvironment place = Find({{"HOROVOD_RANK", "3"},
                                      {"HOROVOD_SIZE", "4"},
                                      {"HOROVOD_LOCAL_RANK", "1"},
                                      {"HOROVOD_LOCAL_SIZE", "2"},
                                      {"MASTER_ADDR", "a"}});
  EXPECT_EQ(place.launcher, "horovodrun");
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 2);
  EXPECT_EQ(place.host, "a");
}

TEST(RankEnvironment, OneProcessIsAlone) {
  const RankEnvironment place = Find({});
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.launcher, "");
}

TEST(RankEnvironment, Torchrun) {
  Environment environment = kTorchrun;
  RankEnvironment place = Find(environment);
  EXPECT_EQ(place.launcher, "fusor launch");
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world_size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.host, "a");
  EXPECT_EQ(place.port, 29400);
  EXPECT_EQ(place.more_ports, 0);
  environment["TORCHELASTIC_RUN_ID"] = "job";
  environment["TORCHELASTIC_RESTART_COUNT"] = "2";
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  place = Find(environment);
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.token, "job.2");
  EXPECT_EQ(place.port, 29401);  // torchrun's agent uses MASTER_PORT
  EXPECT_GT(place.more_ports, 0);
}

TEST(RankEnvironment, OpenMpi) {
  Environment environment{{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                          {"PMIX_RANK", "1"},
                          {"PMIX_NAMESPACE", "123"}};
  const RankEnvironment place = Find(environment);
  EXPECT_EQ(place.launcher, "Open MPI");
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.host, "127.0.0.1");
  EXPECT_EQ(place.token, "123");
  // All ranks of a job must find rank 0 at the same address.
  environment["OMPI_COMM_WORLD_RANK"] = "0";
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_EQ(Find(environment).port, place.port);
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(Rejection(environment),
              HasSubstr("Open MPI: the address of rank 0 is unknown: expected "
                        "MASTER_ADDR"));
  environment["MASTER_ADDR"] = "node-a";
  EXPECT_EQ(Find(environment).host, "node-a");
}

TEST(RankEnvironment, Slurm) {
  Environment environment{{"SLURM_PROCID", "6"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_NUM_NODES", "3"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_NODELIST", "node[07-09]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"}};
  // The batch script itself is not a rank.
  EXPECT_EQ(Find(environment).world_size, 1);
  environment["SLURM_STEP_ID"] = "0";
  const RankEnvironment place = Find(environment);
  EXPECT_EQ(place.launcher, "Slurm");
  EXPECT_EQ(place.rank, 6);
  EXPECT_EQ(place.world_size, 7);
  EXPECT_EQ(place.local_size, 1);
  EXPECT_EQ(place.host, "node07");
  EXPECT_EQ(place.token, "77.0");
  environment["SLURM_NODEID"] = "1";
  EXPECT_EQ(Find(environment).local_size, 3);
  environment["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(Find(environment).host, "127.0.0.1");
}

TEST(RankEnvironment, PmiAndPmix) {
  const RankEnvironment pmi = Find({{"PMI_RANK", "1"},
                                    {"PMI_SIZE", "2"},
                                    {"MPI_LOCALRANKID", "1"},
                                    {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(pmi.launcher, "PMI");
  EXPECT_EQ(pmi.rank, 1);
  EXPECT_EQ(pmi.host, "127.0.0.1");
  EXPECT_THAT(Rejection({{"PMIX_RANK", "1"}}), HasSubstr("WORLD_SIZE"));
  const RankEnvironment pmix =
      Find({{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(pmix.launcher, "PMIx");
  EXPECT_EQ(pmix.world_size, 2);
}

TEST(RankEnvironment, AnIndexedJob) {
  const RankEnvironment place = Find({{"RANK", "3"},
                                      {"WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "train-0.fusor"},
                                      {"MASTER_PORT", "1234"}});
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.local_size, 1);
  EXPECT_EQ(place.host, "train-0.fusor");
  EXPECT_EQ(place.port, 1234);
}

TEST(RankEnvironment, SenselessVariablesAreNamed) {
  Environment environment = kTorchrun;
  environment["RANK"] = "8";
  EXPECT_THAT(Rejection(environment), HasSubstr("got rank 8 of 8"));
  environment["RANK"] = "-1";
  EXPECT_THAT(Rejection(environment),
              HasSubstr("RANK: expected a number, got '-1'"));
}

TEST(RankEnvironment, FirstHostOfAList) {
  EXPECT_EQ(FirstHost("a"), "a");
  EXPECT_EQ(FirstHost("a,b"), "a");
  EXPECT_EQ(FirstHost("node[07-09,12],other"), "node07");
  EXPECT_EQ(FirstHost("n[3]"), "n3");
  EXPECT_EQ(FirstHost("n[3,5]-x.org,z"), "n3-x.org");
  EXPECT_EQ(FirstHost(""), "");
}

}  // namespace
}  // namespace fusor::runtime
