"""Control groups of both versions of the kernel's interface, written as the kernel writes them."""

import os

import psutil
import pytest

from trainer import container

MB = 2**20
UNBOUND_V1 = "9223372036854771712"


@pytest.fixture
def mount(tmp_path):
    (folder := tmp_path / "mount").mkdir()
    return folder


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def own_groups(tmp_path, text):
    (file := tmp_path / "cgroup").write_text(text)
    return file


def test_a_container_of_the_second_version_is_a_whole_tree(tmp_path, mount):
    own = own_groups(tmp_path, "0::/\n")
    write(mount, memory__max=600 * MB, memory__current=400 * MB, cpu__max="150000 100000",
          memory__stat=f"anon {300 * MB}\nactive_file {20 * MB}\ninactive_file {50 * MB}\nshmem 0")  # fmt: skip
    assert container.memory(own, mount) == (600 * MB, 270 * MB)
    assert container.processors(own, mount) == min(2, len(os.sched_getaffinity(0)))


def test_the_tightest_of_the_groups_above_counts(tmp_path, mount):
    own = own_groups(tmp_path, "0::/system.slice/rlproxy.service\n")
    write(mount / "system.slice", memory__max=300 * MB, memory__current=290 * MB, cpu__max="50000 100000")
    write(mount / "system.slice/rlproxy.service", memory__max="max", memory__current=10 * MB, cpu__max="max 100000")
    assert container.memory(own, mount) == (300 * MB, 10 * MB)
    assert container.processors(own, mount) == 1


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/"])
def test_a_container_of_the_first_version_may_be_told_a_path_that_it_does_not_see(tmp_path, mount, path):
    own = own_groups(tmp_path, f"12:pids:{path}\n4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/\n")
    write(mount / "memory", memory__limit_in_bytes=500 * MB, memory__usage_in_bytes=200 * MB,
          memory__stat=f"active_file 1\ntotal_inactive_file {8 * MB}\ntotal_active_file 0")  # fmt: skip
    write(mount / "cpu,cpuacct", cpu__cfs_quota_us=100000, cpu__cfs_period_us=100000)
    assert container.memory(own, mount) == (500 * MB, 308 * MB)
    assert container.processors(own, mount) == 1


def test_more_in_use_than_allowed_leaves_nothing_free(tmp_path, mount):
    own = own_groups(tmp_path, "0::/\n")
    write(mount, memory__max=100 * MB, memory__current=101 * MB)
    assert container.memory(own, mount).free == 0


@pytest.mark.parametrize("groups", ["", "0::/\n", "4:memory:/a\n", "no colon\n", "0::/../../escape\n", ":::\n", "0\n"])
def test_without_bounds_it_is_the_machine(tmp_path, mount, groups):
    write(tmp_path / "escape", memory__max=1, memory__current=1)
    write(mount / "memory/a", memory__limit_in_bytes=UNBOUND_V1, memory__usage_in_bytes=5 * MB)
    write(mount, memory__max="max", memory__current=5 * MB, cpu__max="max 100000")
    own = own_groups(tmp_path, groups)
    assert container.memory(own, mount).total == psutil.virtual_memory().total
    assert container.processors(own, mount) == len(os.sched_getaffinity(0))


def test_a_machine_without_control_groups(tmp_path):
    assert container.memory(tmp_path / "none", tmp_path / "none").total == psutil.virtual_memory().total


def test_what_this_machine_says_is_possible():
    memory = container.memory()
    assert 0 < memory.free <= memory.total <= psutil.virtual_memory().total
    assert 1 <= container.processors() <= len(os.sched_getaffinity(0))


def test_a_group_is_slowed_down_above_its_high_mark(tmp_path, mount):
    own = own_groups(tmp_path, "0::/rlproxy.service\n")
    write(mount / "rlproxy.service", memory__max="max", memory__high=200 * MB, memory__current=150 * MB)
    assert container.memory(own, mount) == (200 * MB, 50 * MB)
    write(mount / "rlproxy.service", memory__max=100 * MB)
    assert container.memory(own, mount) == (100 * MB, 0)


def test_a_bound_holds_where_nothing_tells_what_is_in_use(tmp_path, mount):
    own = own_groups(tmp_path, "0::/\n")
    write(mount, memory__max=1 * MB)
    assert container.memory(own, mount) == (1 * MB, 1 * MB)
