#include "launch/rank_environment.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "core/error.h"

namespace tessera::launch {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<comm::Rendezvous> read(const Variables& variables) {
  return read_rank_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(RankEnvironment, NothingWithoutALauncher) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"MASTER_ADDR", "there"}, {"LOCAL_RANK", "0"}}));
}

TEST(RankEnvironment, Torchrun) {
  const auto place = read({{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "1234"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->world_size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_world_size, 4);
  EXPECT_EQ(place->address, "10.0.0.1");
  EXPECT_EQ(place->port, 1234);
  EXPECT_TRUE(place->store_is_elsewhere);
  EXPECT_EQ(place->store_prefix, "tessera/2");
  EXPECT_EQ(place->timeout, std::chrono::seconds(300));  // as the help of --timeout says
  EXPECT_FALSE(read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}})
                   ->store_is_elsewhere);
}

TEST(RankEnvironment, RanksShareTheHostOfALoopbackAddressOnly) {
  Variables variables = {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}};
  EXPECT_EQ(read(variables)->local_world_size, 1);
  EXPECT_EQ(read(variables)->local_rank, 0);
  variables["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(read(variables)->local_world_size, 4);
  EXPECT_EQ(read(variables)->local_rank, 3);
}

TEST(RankEnvironment, TheLauncherNamesTheJob) {
  const auto job = [](const Variables& variables) { return read(variables)->job; };
  const Variables torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  const auto with = [](Variables variables, const Variables& more) {
    variables.insert(more.begin(), more.end());
    return variables;
  };
  EXPECT_EQ(job(torchrun), "");
  EXPECT_EQ(job(with(torchrun, {{"TORCHELASTIC_RUN_ID", "7"}})), "TORCHELASTIC_RUN_ID=7 ");
  // A step of Slurm may have started each rank for itself.
  EXPECT_EQ(job(with(torchrun, {{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "2"}})), "");
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(job(with(mpi, {{"PMIX_NAMESPACE", "a"}})), "PMIX_NAMESPACE=a ");
  EXPECT_EQ(job(with(mpi, {{"OMPI_MCA_ess_base_jobid", "3"}})), "OMPI_MCA_ess_base_jobid=3 ");
  EXPECT_EQ(
      job({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
      "SLURM_JOB_ID=1 SLURM_STEP_ID=2 ");
}

TEST(RankEnvironment, AddressesOfHosts) {
  const auto with = [](const std::string& address) {
    return Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", address}};
  };
  for (const char* address : {"node-17.example.org", "10.0.0.1", "::1", "fe80::1%eth0"})
    EXPECT_EQ(read(with(address))->address, address);
  EXPECT_EQ(read(with("[::1]"))->address, "::1");
  EXPECT_EQ(read(with(""))->address, "127.0.0.1");
  for (const char* address :
       {"host:29500", "tcp://host", "[::1]:29500", "user@host", "a b", "0.0.0.0", "0", "::", "[::]"})
    EXPECT_NE(refusal(with(address)).find("[MASTER_ADDR] '"), std::string::npos) << address;
}

TEST(RankEnvironment, RanksWithoutAPlaceAreOfOneHost) {
  const auto place = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_world_size, 2);
}

TEST(RankEnvironment, OpenMpiOnOneHost) {
  const auto place = read({{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->world_size, 2);
  EXPECT_EQ(place->local_world_size, 2);
  EXPECT_EQ(place->address, "127.0.0.1");
  EXPECT_EQ(place->port, 29500);
  EXPECT_FALSE(place->store_is_elsewhere);
}

TEST(RankEnvironment, SlurmCountsTheRanksOfItsHost) {
  Variables variables = {{"SLURM_JOB_ID", "7"},      {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "6"},      {"SLURM_NTASKS", "9"},
                         {"SLURM_LOCALID", "0"},     {"SLURM_NODEID", "3"},
                         {"MASTER_ADDR", "node-17"}, {"SLURM_TASKS_PER_NODE", "2(x3),1,2"}};
  EXPECT_EQ(read(variables)->local_world_size, 1);
  variables["SLURM_NODEID"] = "2";
  EXPECT_EQ(read(variables)->local_world_size, 2);
  variables["SLURM_NODEID"] = "4";
  EXPECT_EQ(read(variables)->local_world_size, 2);
  // A step may be a part of its job.
  Variables step = variables;
  step["SLURM_STEP_NUM_TASKS"] = "7";
  step["SLURM_STEP_TASKS_PER_NODE"] = "1(x4),3";
  EXPECT_EQ(read(step)->world_size, 7);
  EXPECT_EQ(read(step)->local_world_size, 3);
  for (const char* broken : {"2(x", "x", "2(x3)4", "0", "-1"}) {
    variables["SLURM_TASKS_PER_NODE"] = broken;
    EXPECT_NE(refusal(variables).find("[SLURM_TASKS_PER_NODE]"), std::string::npos) << broken;
  }
  variables.erase("SLURM_STEP_ID");  // a batch script is no rank
  EXPECT_FALSE(read(variables));
}

TEST(RankEnvironment, PmiOfSlurmKnowsNoPlaceOnTheHost) {
  Variables variables = {{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},     {"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"},   {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"},   {"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "2(x2)"},
                         {"MASTER_ADDR", "node-1"}};
  EXPECT_EQ(read(variables)->rank, 3);
  EXPECT_EQ(read(variables)->local_rank, 1);
  EXPECT_EQ(read(variables)->local_world_size, 2);
  // MPICH's launcher runs in a job, and srun has started one of its processes on each host.
  variables["SLURM_PROCID"] = "1";
  variables["SLURM_NTASKS"] = "2";
  variables["SLURM_TASKS_PER_NODE"] = "1(x2)";
  variables["MPI_LOCALRANKID"] = "1";
  variables["MPI_LOCALNRANKS"] = "2";
  EXPECT_EQ(read(variables)->rank, 3);
  EXPECT_EQ(read(variables)->world_size, 4);
  EXPECT_EQ(read(variables)->local_world_size, 2);
}

TEST(RankEnvironment, OneRank) {
  const auto place = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->world_size, 1);
  EXPECT_EQ(place->local_world_size, 1);
}

TEST(RankEnvironment, RefusesWhatMakesNoSense) {
  const auto names = [](const Variables& variables, const std::string& name) {
    const std::string message = refusal(variables);
    EXPECT_TRUE(message.starts_with("[" + name + "] ")) << message;
  };
  names({{"RANK", "0"}}, "WORLD_SIZE");
  names({{"WORLD_SIZE", "2"}}, "RANK");
  names({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK");
  names({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK");
  names({{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK");
  names({{"RANK", "0"}, {"WORLD_SIZE", "2x"}}, "WORLD_SIZE");
  names({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE");
  names({{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}, "WORLD_SIZE");
  names({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "0"}}, "MASTER_PORT");
  names({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}, "LOCAL_RANK");
  names({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}, "LOCAL_WORLD_SIZE");
  names({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}, "MASTER_ADDR");
}

}  // namespace
}  // namespace tessera::launch
