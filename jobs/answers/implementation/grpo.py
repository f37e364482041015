"""Implementation of `grpo`: the training task, with TRL's GRPOTrainer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from ratchet.data.tables import read_shards
from ratchet.data.tasks.task import CORRECT, SAMPLES, Sample, Task, row_to_sample
from ratchet.errors import InputError
from ratchet.jobs.answers.answering_task import AnsweringTask
from ratchet.jobs.answers.grpo import Config, Inputs, Options, check_samples, find_prompt_length, make_options
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.finetuning import run_finetuning
from ratchet.jobs.training.task import WorkerInfo
from ratchet.jobs.training.trainer_loop import TrainerTask
from ratchet.models.decoder.sampling import Sampling, generate
from ratchet.models.loading import silence_transformers, train_in_float32
from ratchet.orchestrator.job_interface import Context, Resources, Result


class GrpoTask(AnsweringTask, TrainerTask):
    """Trains a causal language model on its own answers."""

    job = "grpo"

    def __init__(self, worker: WorkerInfo, config: Options, inputs: Inputs, resources: Resources, counts: Path) -> None:
        # With method=full the weights are float32, and bfloat16 is used by autocast only.
        super().__init__(worker, config, inputs, resources, dtype="float32" if config.method == "full" else None)
        self.steps = [config.steps]
        self.table = read_shards(inputs.train, SAMPLES.names)
        parts = (map(row_to_sample, part.to_pylist()) for part in self.table.to_batches(1024))
        size_N = np.array([len(ids) for part in parts for ids in self._tokenize(part)])
        limit = find_prompt_length(config, inputs.base)
        if not len(kept_N := np.flatnonzero(size_N <= limit)):
            raise InputError(
                f"grpo.max_prompt_length: {limit} given, and all {len(size_N)} prompts of"
                f" {inputs.train} are longer; expected some that fit; raise it"
            )
        counts.write_text(json.dumps({"samples": len(kept_N), "too_long": len(size_N) - len(kept_N)}))
        self.row_D = kept_N[draw_order(len(kept_N), config.steps * config.batch_size, config.seed)]
        """The row of the sample of each draw, int64 [D]. A training step takes `batch_size` draws."""
        self.longest = int(size_N[self.row_D].max())

    def _find_sample(self, draw: str) -> Sample:
        return row_to_sample(self.table.slice(int(self.row_D[int(draw)]), 1).to_pylist()[0])

    def _tokenize(self, samples: Iterable[Sample]) -> list[list[int]]:
        """Return the prompts of samples as token ids."""
        tokenize = self.decoder.conversations.tokenize_samples
        found: list[list[int]] = []
        for tokens in tokenize((one.system, [one.turns[0][0]], []) for one in samples):
            found.append(tokens.ids)
        return found

    def evaluate(self) -> Evaluation:
        correct, questions = self.verify_answers()
        return Evaluation({"accuracy": round(correct / questions, 6)})

    def make_trainer(self, folder: Path, optimizers: tuple[Any, Any], callback: TrainerCallback) -> Any:
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # the warning that rollout_func may change: setup.cfg pins TRL
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        config = self.config
        rows = config.batch_size * config.num_completions
        rows_per_pass = self._rows_per_pass(rows)
        settings = GRPOConfig(
            output_dir=str(folder),
            max_steps=config.steps,
            num_generations=config.num_completions,
            per_device_train_batch_size=rows_per_pass,
            gradient_accumulation_steps=rows // rows_per_pass,
            temperature=config.temperature,
            max_completion_length=config.max_new_tokens,
            beta=config.kl_weight,
            max_grad_norm=config.max_grad_norm or float("inf"),  # with 0 the norm would not be computed
            bf16=config.method == "full" and config.dtype == "bfloat16",
            gradient_checkpointing=False,  # `make_trainable` has turned it on if the setting is true
            use_cpu=self.device == "cpu",
            seed=config.seed,
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        with silence_transformers():
            trainer = GRPOTrainer(
                self.model,
                reward_funcs=self._score,
                args=settings,
                train_dataset=Dataset.from_dict({"prompt": [str(draw) for draw in range(len(self.row_D))]}),
                processing_class=self.decoder.tokenizer,
                callbacks=[callback],
                optimizers=optimizers,
                rollout_func=self._answer,
            )
        if config.method == "lora":
            # TRL adds a copy `ref` for the KL divergence. It casts adapters over a base in 4 bits to bfloat16: undo it.
            for name in sorted(self.model.peft_config, reverse=True):
                self.model.set_adapter(name)
                train_in_float32(self.model)
        return trainer

    def describe_step(self, logs: Mapping[str, float]) -> dict[str, float]:
        if self.config.kl_weight:
            kl = {"KL divergence": logs["kl"]}
        else:
            kl = {}
        return {"reward": logs["reward"], "completion length": logs["completions/mean_length"], **kl}

    def _rows_per_pass(self, rows: int) -> int:
        """Return the largest divisor of `rows`, the completions of a training step, that fits into a forward pass."""
        length = self.longest + self.config.max_new_tokens
        most = self.resources.micro_batch_size or max(1, self.pass_tokens // length)
        return next(count for count in range(min(rows, most), 0, -1) if rows % count == 0)

    def _answer(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Sample completions: TRL's rollout_func. prompts: draw numbers as text, each once per completion of the draw.

        The sampled tokens depend only on the model and (seed, draw, completion, position)."""
        config = self.config
        sampling = Sampling(config.temperature, max_new_tokens=config.max_new_tokens, stop=self.stop, seed=config.seed)
        ids = self._tokenize(map(self._find_sample, prompts))
        names = []
        for number, draw in enumerate(prompts):
            names.append(f"{draw}/{number % config.num_completions}")
        with trainer.accelerator.autocast():
            answers = generate(self.decoder, ids, names, sampling, batch_tokens=self.resources.batch_tokens)
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    def _score(
        self, prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **others: Any
    ) -> list[float | None]:
        """Return the reward of each completion: TRL's reward function."""
        decode = self.decoder.conversations.decode
        found: list[float | None] = []
        for draw, ids in zip(prompts, completion_ids, strict=True):
            found.append(compute_reward(self.task, self._find_sample(draw), decode(ids)))
        return found


def compute_reward(task: Task, sample: Sample, answer: str) -> float:
    """Return the fraction of the sample's questions that are answered correctly. Most tasks have one question per
    sample, so it is 1 or 0."""
    labels = []
    for verification in task.verify(sample.gold, [answer]):
        labels.append(verification.label)
    return labels.count(CORRECT) / len(labels)


def draw_order(samples: int, draws: int, seed: int) -> np.ndarray:
    """Return indices of samples, int64 [draws]: random permutations of all samples, one after the other."""
    rounds = []
    for number in range(-(-draws // samples)):
        rounds.append(np.random.default_rng([seed, number]).permutation(samples))
    return np.concatenate(rounds)[:draws]


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    check_samples(inputs.train)  # at plan time they may not have existed
    counts = context.work / "counts.json"
    options = make_options(config, inputs.current_best is not None)
    result, history = run_finetuning(context, options, GrpoTask, inputs, counts=counts)
    found = {"metric": "accuracy", "tables": result.tables, "curves": result.curves}
    (context.out / "history.json").write_text(json.dumps(found) + "\n")
    last = history.others["reward"][-10:]
    metrics = {**result.metrics, **json.loads(counts.read_text()), "reward": round(sum(last) / len(last), 6)}
    return replace(result, metrics=metrics)
