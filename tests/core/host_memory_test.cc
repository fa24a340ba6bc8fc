#include "core/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

constexpr uint64_t kMegabyte = uint64_t{1} << 20;

// A folder with what a system tells of its memory: 1000 MiB, of which 600 are available, and 100 of swap.
class FakeSystem {
 public:
  FakeSystem() {
    write("proc/meminfo",
          "MemTotal: 1024000 kB\nMemFree: 1024 kB\nMemAvailable: 614400 kB\nSwapTotal: 102400 kB\n");
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  const std::filesystem::path& root() const { return folder_.path(); }
  std::vector<MemoryLimit> limits() const { return memory_limits(root()); }

  // Version 2 alone, with the process in /jobs/one.
  void mount_version_2(const std::string& mounted = "/") {
    write("proc/self/cgroup", "0::/jobs/one\n");
    write("proc/self/mountinfo",
          "30 23 0:26 " + mounted + " /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
  }

 private:
  TemporaryFolder folder_;
};

std::string bytes(uint64_t megabytes) {
  return std::to_string(megabytes * kMegabyte) + "\n";
}

TEST(TotalMemory, IsNoMoreThanTheMachines) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  EXPECT_GT(total_memory(), 0U);
  EXPECT_LE(total_memory(), all);
}

TEST(MemoryLimits, OfAMachineCountItsSwap) {
  const FakeSystem system;
  ASSERT_EQ(system.limits().size(), 1U);
  EXPECT_EQ(system.limits()[0].most, 1100 * kMegabyte);
  EXPECT_EQ(system.limits()[0].available, 600 * kMegabyte);
  EXPECT_EQ(total_memory(system.root()), 1000 * kMegabyte);
}

TEST(MemoryLimits, AreUnknownWhereTheSystemTellsNothing) {
  const TemporaryFolder nothing;
  EXPECT_TRUE(memory_limits(nothing.path()).empty());
  EXPECT_EQ(total_memory(nothing.path()), static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

// What the kernel would drop from its cache of files is available.
TEST(MemoryLimits, OfNestedGroupsAllCount) {
  FakeSystem system;
  system.mount_version_2();
  system.write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  system.write("sys/fs/cgroup/jobs/memory.max", bytes(400));
  system.write("sys/fs/cgroup/jobs/memory.high", "max\n");
  system.write("sys/fs/cgroup/jobs/memory.current", bytes(300));
  system.write("sys/fs/cgroup/jobs/memory.stat",
               "anon 7\ninactive_file " + bytes(150) + "active_file " + bytes(50) + "slab 9\n");
  ASSERT_EQ(system.limits().size(), 2U);
  const MemoryLimit group = system.limits()[1];
  EXPECT_EQ(group.name, "the control group /jobs");
  EXPECT_EQ(group.most, 500 * kMegabyte);
  EXPECT_EQ(group.available, 300 * kMegabyte);
  EXPECT_EQ(total_memory(system.root()), 400 * kMegabyte);
}

// Beyond it the kernel slows a group down, but kills nobody.
TEST(MemoryLimits, ThatAreHighOnlyCanBeExceeded) {
  FakeSystem system;
  system.mount_version_2();
  system.write("sys/fs/cgroup/jobs/one/memory.high", bytes(200));
  system.write("sys/fs/cgroup/jobs/one/memory.current", bytes(50));
  ASSERT_EQ(system.limits().size(), 2U);
  EXPECT_EQ(system.limits()[1].most, kUnlimited);
  EXPECT_EQ(system.limits()[1].available, 150 * kMegabyte);
  EXPECT_EQ(total_memory(system.root()), 1000 * kMegabyte);
}

TEST(MemoryLimits, OfVersion1AreFoundBesideVersion2) {
  FakeSystem system;
  system.write("proc/self/cgroup", "7:memory:/jobs/one\n3:cpu,cpuacct:/\n0::/\n");
  system.write("proc/self/mountinfo",
               "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
               "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
               "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
               "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  system.write(memory + "memory.limit_in_bytes", "9223372036854771712\n");  // none
  system.write(memory + "jobs/one/memory.limit_in_bytes", bytes(256));
  system.write(memory + "jobs/one/memory.usage_in_bytes", bytes(100));
  system.write(memory + "jobs/one/memory.stat", "inactive_file 1\ntotal_inactive_file " + bytes(60));
  ASSERT_EQ(system.limits().size(), 2U);
  EXPECT_EQ(system.limits()[1].name, "the control group /jobs/one");
  EXPECT_EQ(system.limits()[1].available, 216 * kMegabyte);
  EXPECT_EQ(total_memory(system.root()), 256 * kMegabyte);
}

// A container sees its own group as the root of what is mounted, under the path that the group has outside.
TEST(MemoryKills, AreThoseOfTheGroup) {
  FakeSystem system;
  EXPECT_EQ(memory_kills(system.root()), 0U);
  system.write("proc/vmstat", "pgfault 12\noom_kill 7\n");
  EXPECT_EQ(memory_kills(system.root()), 7U);
  system.mount_version_2();
  EXPECT_EQ(memory_kills(system.root()), 7U) << "the group counts none";
  system.write("sys/fs/cgroup/jobs/one/memory.events", "low 0\nmax 9\noom 3\noom_kill 2\n");
  EXPECT_EQ(memory_kills(system.root()), 2U);
}

TEST(MemoryKills, OfVersion1AreFoundBesideVersion2) {
  FakeSystem system;
  system.write("proc/self/cgroup", "4:memory:/box\n0::/\n");
  system.write("proc/self/mountinfo",
               "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
               "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  system.write("sys/fs/cgroup/memory/box/memory.oom_control",
               "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  EXPECT_EQ(memory_kills(system.root()), 5U);
}

TEST(MemoryLimits, OfAContainerAreFound) {
  for (const char* mounted : {"/jobs/one", "/", "/elsewhere"}) {
    FakeSystem system;
    system.mount_version_2(mounted);
    system.write("sys/fs/cgroup/memory.max", bytes(128));
    ASSERT_EQ(system.limits().size(), 2U) << mounted;
    EXPECT_EQ(system.limits()[1].most, 228 * kMegabyte) << mounted;
    EXPECT_EQ(system.limits()[1].name, "the control group /") << mounted;
  }
}

}  // namespace
}  // namespace tessera
