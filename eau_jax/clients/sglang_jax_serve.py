"""Serves a model with sglang-jax and adds what its own server lacks: new weights from files, and which ones it holds.

    python -P eau_jax/clients/sglang_jax_serve.py --model-path DIR --port 31000 --skip-tokenizer-init ...

Run it with the Python of sglang-jax's environment; the flags are those of `sgl_jax.launch_server`. It needs nothing of this
package. It was written against sglang-jax 0.1.0rc0 and reaches into that version's private parts, so pin it.
"""

import argparse
import asyncio
import copy
import os

import jax
import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse
from flax import nnx
from sgl_jax.srt.entrypoints import engine, http_server
from sgl_jax.srt.server_args import ServerArgs

FLUSH_S = 30.0   # seconds for requests that were aborted to leave the queue


class Weights:
    """The weights of the server's model, and their label."""

    def __init__(self, scheduler, manager, label: str):
        self.runner = getattr(scheduler.tp_worker, "worker", scheduler.tp_worker).model_runner
        self.manager, self.label = manager, label

    def load(self, folder: str) -> None:
        runner, config = self.runner, copy.copy(self.runner.model_config)
        config.model_path = folder
        with jax.set_mesh(runner.mesh):
            runner.model.load_weights(config)
            runner.model_state_leaves = jax.tree_util.tree_flatten(nnx.split(runner.model)[1])[0]

    async def update(self, folder: str, label: str) -> str:
        """Empty when the server holds the weights of `folder` and nothing of the old ones is cached; else what is wrong."""
        if not os.path.isfile(os.path.join(folder, "config.json")):
            return f"no weights in {folder}"
        if not self.manager.is_pause:
            return "the server is not paused; call /pause_generation first"
        self.label = "unknown"
        await asyncio.to_thread(self.load, folder)
        flushed = await self.manager.flush_cache()
        for _ in range(int(FLUSH_S / 0.1)):
            if flushed.success:
                self.label = label
                return ""
            await asyncio.sleep(0.1)
            flushed = await self.manager.flush_cache()
        return f"the cache was not emptied: {flushed.error_msg}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args()
    given.enable_single_process = True
    arguments = ServerArgs.from_cli_args(given)
    manager, templates, info = engine._launch_threads(arguments, None)
    weights = Weights(info.pop("scheduler"), manager, os.environ.get("EAU_WEIGHT_VERSION", "default"))
    http_server.set_global_state(http_server._GlobalState(
        tokenizer_manager=manager, template_manager=templates, scheduler_info=info))
    app = http_server.app
    app.server_args = arguments
    if arguments.api_key:
        http_server.add_api_key_middleware(app, arguments.api_key)

    @app.get("/model_info")
    async def model_info():
        return {"model_path": manager.model_path, "weight_version": weights.label}

    @app.post("/update_weights_from_disk")
    async def update_weights_from_disk(request: Request):
        body = await request.json()
        try:
            wrong = await weights.update(body["model_path"], str(body.get("weight_version", "default")))
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        return JSONResponse({"success": not wrong, "message": wrong}, 400 if wrong else 200)

    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
