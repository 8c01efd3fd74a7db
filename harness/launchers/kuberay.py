"""KubeRay: a RayJob, and the config map with the script that its head runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.command_options import of_options
from harness.errors import BadInput
from harness.launchers import _job, _manifest, _node, write
from harness.launchers._templates import rendered

CHECKED = "KubeRay 1.7.0"
START_S = 1800  # seconds to schedule pods and pull images, which the deadline includes
RESULTS = "/harness-results"


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render kuberay`."""

    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the job's command, run on the head")]
    image: Annotated[
        str, typer.Option(help="the image of every pod, with Ray and the harness; --base may name it instead")
    ] = ""
    nodes: _job.Nodes = 1
    gpus: Annotated[int, typer.Option(min=0, help="the number of NVIDIA GPUs on each node")] = 0
    claim: Annotated[
        str,
        typer.Option(
            help="a persistent volume claim to write recordings and evidence to; without one the pods are kept"
        ),
    ] = ""
    time: _node.Time = ""
    base: _manifest.Base = None


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a RayJob of KubeRay.

    It runs harness doctor on every node before the start; it runs the command under harness watch and ends it when it
    hangs (exit code 86); before activeDeadlineSeconds it takes evidence. The manifest was held against KubeRay's own
    schema, not run.

    \b
    Example:
      harness render kuberay --image registry/ray-harness:1 --claim runs --time 12h -- python train.py
    """
    limit = _node.limit_s(context, options.time, options.early)
    results = RESULTS if options.claim else "/tmp"
    title = re.sub(r"[^a-z0-9]+", "-", options.title.lower()).strip("-")[:40].strip("-") or "job"
    base_manifest = _manifest.load(options.base)
    spec = _manifest.part(base_manifest, "spec", dict, options.base)
    if spec.get("rayClusterSpec") and (options.image or options.gpus or options.nodes > 1):
        raise BadInput(f"{options.base} has a cluster of its own", fix="leave out --image, --nodes and --gpus")
    cluster = spec.get("rayClusterSpec") or _cluster(options.image, options.nodes, options.gpus)
    _mount(cluster, title, options.claim, options.base)
    metadata = {"name": title, **_manifest.part(base_manifest, "metadata", dict, options.base)}
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "shutdownAfterJobFinishes": bool(options.claim),
            **spec,
            "entrypoint": "bash /harness/job.sh",
            **({"preRunningDeadlineSeconds": START_S, "activeDeadlineSeconds": START_S + int(limit)} if limit else {}),
            "rayClusterSpec": cluster,
        },
    }
    script = _node.script(
        options, rendered("kuberay.sh"), nodes=1, shared=results, limit=limit, doctor=_node.IN_A_RAY_JOB
    )
    place = {key: metadata[key] for key in ("namespace",) if key in metadata}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": title, **place}, "data": {"job.sh": script}}
    text = _manifest.text(manifest, CHECKED) + "---\n" + _manifest.text(config)
    write({f"{title}.kuberay.yaml": text}, options.out, _job.command_line(context), recreate=options.recreate)


def _cluster(image: str, nodes: int, gpus: int) -> dict[str, Any]:
    """A head and, for more than one node, a group of workers."""
    if not image:
        raise BadInput(
            "a RayJob needs an image with Ray and the harness", fix="--image IMAGE   # or --base rayjob.yaml"
        )

    def group(name: str) -> dict[str, Any]:
        resources = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
        return {
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"name": name, "image": image, **resources}]}},
        }

    replicas = {"groupName": "workers", "replicas": nodes - 1, "minReplicas": nodes - 1, "maxReplicas": nodes - 1}
    workers = [{**replicas, **group("ray-worker")}] if nodes > 1 else []
    return {"headGroupSpec": group("ray-head"), **({"workerGroupSpecs": workers} if workers else {})}


def _mount(cluster: dict[str, Any], title: str, claim: str, base: Path | None) -> None:
    """The script on the head, the claim on every node."""
    script = ({"name": "harness", "configMap": {"name": title}}, "/harness")
    results = ({"name": "harness-results", "persistentVolumeClaim": {"claimName": claim}}, RESULTS)
    try:
        pods = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
        for number, pod in enumerate(pods):
            spec = pod["template"]["spec"]
            for volume, path in [*([] if number else [script]), *([results] if claim else [])]:
                spec.setdefault("volumes", []).append(volume)
                mounts = spec["containers"][0].setdefault("volumeMounts", [])
                mounts.append({"name": volume["name"], "mountPath": path})
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadInput(f"{base} has no pod with a container in spec.rayClusterSpec", fix="--image IMAGE") from error
