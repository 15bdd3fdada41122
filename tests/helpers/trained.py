"""A short training run that takes the same steps to the bit each time it is made."""

from __future__ import annotations

from tiny import Example, generator, random_ids

from diffgemma_lite import Config, DiffusionGemma
from diffgemma_lite.train import TrainConfig, train

PLAN = dict(steps=9, batch_size=4, checkpoint_every=4, log_every=3, warmup_steps=3)


def fresh(seed: int = 0) -> DiffusionGemma:
    model = DiffusionGemma(Config.preset("tiny"))
    model.init_weights(generator(seed))
    return model


def examples(n: int = 14) -> list[Example]:
    return [
        Example(
            random_ids(3 + i % 5, seed=i).tolist(),
            random_ids(4 + i, seed=50 + i).tolist(),
            i % 4 > 0,
        )
        for i in range(n)
    ]


def run(folder=None, model=None, on_log=None, **changes):
    """(weights, log without timings) of a run of PLAN."""
    model = fresh() if model is None else model
    log = train(
        model,
        examples(),
        TrainConfig(**(PLAN | changes)),
        folder=folder,
        progress=False,
        on_log=on_log,
    )
    return model.state_dict(), [{k: v for k, v in entry.items() if k != "seconds"} for entry in log]
