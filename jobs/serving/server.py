"""`ratchet serve`: starts the HTTP endpoint with Ray Serve, and stops it at Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.models.usage import find_usage
from ratchet.orchestrator.job_interface.snapshot import freeze_code
from ratchet.orchestrator.job_interface.terminal import print_clean

NAME = "ratchet"
"""Name of the application in Ray Serve."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(paths: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Serve models until the process is interrupted. paths: name of a model in requests -> its exported folder."""
    check(arguments)  # again, since another process may have taken the port
    for name, path in paths.items():
        if find_usage(path) == "decoder":
            raise InputError(
                f"serve {name}: a causal language model; expected embedders and rerankers; `ratchet export` it, and"
                " serve the folder with `vllm serve`"
            )
    import ray
    from ray import serve as ray_serve

    from ratchet.jobs.serving.application import ModelServer

    given = os.environ.get("RATCHET_TOKEN")
    token = given or secrets.token_urlsafe(24)
    address = arguments.address or os.environ.get("RAY_ADDRESS") or "local"
    with freeze_code(()) as (_, runtime_env):
        handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own handler, which ends the process at once
        ray.init(
            address=address,
            runtime_env=runtime_env,
            include_dashboard=False if address == "local" else None,  # the dashboard takes seconds to start
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        signal.signal(signal.SIGTERM, handler)
    try:
        http_options = {"host": arguments.host, "port": arguments.port}
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        ray_serve.start(proxy_location="HeadOnly", http_options=http_options, logging_config=quiet)
        machine = ray.cluster_resources()
        kind = "GPU" if machine.get("GPU") else "CPU"
        if arguments.replicas > machine[kind]:
            raise _refuse_replicas(arguments, f"{machine[kind]:g} {kind}s of the cluster")
        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        threads = count_threads(cpus, arguments.replicas)
        deployment = ray_serve.deployment(
            num_replicas=arguments.replicas,
            max_ongoing_requests=100,
            ray_actor_options={"num_gpus": 1} if kind == "GPU" else {"num_cpus": threads},
        )(ModelServer)
        application = deployment.bind({name: str(path) for name, path in paths.items()}, token, threads)
        ray_serve.run(application, name=NAME, logging_config=quiet)
        _tell(paths, arguments, "" if given else token)
        threading.Event().wait()
    except KeyboardInterrupt:
        print_clean("stopping")
    finally:
        if address != "local":  # a local Ray ends with all its applications
            ray_serve.delete(NAME)
        ray.shutdown()


def count_threads(cpus: Sequence[int], replicas: int) -> int:
    """Return the maximum number of CPUs per replica with which all replicas fit. cpus: CPUs of each machine."""
    return max((n for n in range(1, max(cpus) + 1) if sum(own // n for own in cpus) >= replicas), default=1)


def check(arguments: argparse.Namespace) -> None:
    """Raise InputError for arguments with which no model can be served. Called before any step runs."""
    require_extra("serve: given", "serve", "fastapi")
    processors = os.cpu_count() or 1
    if not (arguments.address or os.environ.get("RAY_ADDRESS")) and arguments.replicas > processors:
        raise _refuse_replicas(arguments, f"{processors} CPUs of this machine")
    with socket.socket(socket.AF_INET6 if ":" in arguments.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((arguments.host, arguments.port))
        except OSError as error:
            raise InputError(
                f"serve: port {arguments.port} of {arguments.host}: {error.strerror}; expected a free port of this"
                " machine; give another --port"
            ) from None


def _refuse_replicas(arguments: argparse.Namespace, there_are: str) -> InputError:
    return InputError(
        f"serve --replicas {arguments.replicas}: more than the {there_are}; expected at most one replica for each;"
        " lower it"
    )


def _tell(paths: Mapping[str, Path], arguments: argparse.Namespace, token: str) -> None:
    """Print where the models are served. token: the generated token; empty: the token is in RATCHET_TOKEN."""
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    url, models = f"http://{host}:{arguments.port}", {name: find_usage(path) for name, path in paths.items()}
    if arguments.json:
        print_clean(json.dumps({"url": url, **({"token": token} if token else {}), "models": models}))
        return
    name = next(iter(models))
    print_clean(f"serving {', '.join(f'{name} ({usage})' for name, usage in models.items())} at {url}")
    print_clean(f"token: {token or 'that of RATCHET_TOKEN'}")
    key = f'"{token}"' if token else 'os.environ["RATCHET_TOKEN"]'
    if models[name] == "embedder":
        print_clean(f'  from openai import OpenAI; client = OpenAI(base_url="{url}/v1", api_key={key})')
        print_clean(
            f'  client.embeddings.create(model="{name}", input=["a text"], extra_body={{"input_type": "query"}})'
        )
    if arguments.host not in LOOPBACK:
        print_clean("note: requests and the token are not encrypted; put a proxy with TLS in front of it")
    print_clean("ctrl-C stops it")
