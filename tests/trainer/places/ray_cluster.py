"""A real cluster of Ray on this machine: a head with the Jobs API, and a node with a resource of its own.

Owns its start and end, as a program in Ray's own environment (`~/.cache/rlproxy/venvs/ray`): rlproxy's has no Ray.

    PYTHON ray_cluster.py PORT      prints `ready`, ends with its stdin; `kill node` on stdin takes the node away
"""

from __future__ import annotations

import sys
import time


def main(port: str) -> None:
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": int(port), "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)
    node = cluster.add_node(num_cpus=2, resources={"trainer": 1}, object_store_memory=2**27)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "kill node":
            cluster.remove_node(node, allow_graceful=False)
            while sum(each["Alive"] for each in ray.nodes()) > 1:  # until the head has seen it, a job may be sent there
                time.sleep(0.2)
        elif line.strip() == "add node":
            node = cluster.add_node(num_cpus=2, resources={"trainer": 1}, object_store_memory=2**27)
        print("done", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
