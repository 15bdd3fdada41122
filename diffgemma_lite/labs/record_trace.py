"""Record one canvas of a shipped model as a trace, so that it can be shown without running the
model.

    python -m diffgemma_lite.labs.record_trace \\
        assets/checkpoints/python-small assets/recordings/python-small.json --task body --seed 0 \\
        --prompt "def load(path):\\n    \\"\\"\\"Read the file and return its lines.\\"\\"\\""
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import torch

from .. import DiffusionGemma, SamplerConfig, Trace, generate
from ..tokenizer import Tokenizer, encode_prompt

PROMPT_HELP = (
    r"the text to go on from; every \n typed in it, a backslash and an n, becomes a new line, "
    r"also inside quotes"
)


def record_trace(folder: str | Path, task: str, prompt: str, seed: int) -> Trace:
    """Generate one canvas after the prompt, in float32 with the folder's own settings, and say in
    `meta` how it was made.
    """
    model, tokenizer = (
        DiffusionGemma.from_pretrained(folder, dtype=torch.float32),
        Tokenizer.load(folder),
    )
    length = model.config.canvas_length
    ids = torch.tensor([encode_prompt(tokenizer, task, prompt, max_prompt=48)])
    out = generate(
        model,
        ids,
        SamplerConfig.from_defaults(model.generation_defaults),
        max_new_tokens=length,
        eos_token_id=tokenizer.eos_id,
        generator=torch.Generator().manual_seed(seed),
        trace=True,
    )
    out.trace.meta = {
        "model": Path(folder).name,
        "task": task,
        "prompt": prompt,
        "seed": seed,
        "dtype": "float32",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return out.trace.with_texts(tokenizer.token_text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Record one canvas of a checkpoint as a trace.")
    parser.add_argument("checkpoint")
    parser.add_argument("trace", help="where to write the JSON")
    parser.add_argument("--task", default="body")
    parser.add_argument("--prompt", required=True, help=PROMPT_HELP)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    trace = record_trace(
        given.checkpoint, given.task, given.prompt.replace("\\n", "\n"), given.seed
    )
    print(
        f"{trace.save(given.trace)}: {int(trace.canvases[0].steps[0])} steps, "
        f"{len(trace.tokens[0])} tokens kept"
    )


if __name__ == "__main__":
    main()
