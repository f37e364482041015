"""Training of a decoder on its own answers: TRL's GRPOTrainer does the training steps.

    GrpoTrainer (TrainerCallback)    evaluations, checkpoints, history and progress, as in Trainer
      └ GRPOTrainer, made by GrpoTask    batches, loss, optimizer

Checkpoints have the layout of Trainer's and are also published atomically, but with the state of TRL's trainer
(weights, optimizer, training step) in place of DeepSpeed's. Each worker answers and trains on an equal part of the
questions; TRL compares the rewards of a question within a worker, and accelerate averages the gradients.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback

from ratchet.data.tables import read_shards
from ratchet.data.tasks.task import CORRECT, SAMPLES, Sample, Task, row_to_sample
from ratchet.errors import InputError
from ratchet.jobs.answers.held_out_answers import AnswerTask
from ratchet.jobs.answers.lengths import GRPO_PROMPT
from ratchet.jobs.on_policy.draws import draw_order
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.jobs.training.trainer import Trainer, seed_generators
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.decoder.sampling import Sampling, generate
from ratchet.models.engine import group_weights
from ratchet.models.loading import silence_transformers, train_in_float32
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.on_policy.grpo import Inputs, Options


class TrainerState:
    """The checkpoint state of the trainer, behind the methods of DeepSpeed's engine that Trainer calls."""

    def __init__(self, worker: WorkerInfo) -> None:
        self.worker = worker
        self.folder: Path | None = None
        """Folder that the trainer writes its checkpoints into. None: not set yet."""
        self.loaded: Path | None = None
        """The checkpoint to resume from. None: start from the beginning."""

    def save_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        gather_objects(None)  # all workers have written their part
        if self.worker.rank != 0:
            return
        assert self.folder is not None
        (made,) = self.folder.glob("checkpoint-*")
        made.rename(Path(folder) / tag)

    def load_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        self.loaded = Path(folder) / tag

    def destroy(self) -> None:
        """Do nothing: the trainer releases its state by itself."""


class GrpoTrainer(Trainer, TrainerCallback):
    """Runs TRL's trainer, and is its callback. In each training step that calls `on_log` before `on_save`."""

    task: "GrpoTask"
    seen = 0.0
    """Number of tokens that the trainer has processed before the current training step."""

    def _start_engine(self) -> TrainerState:
        if self.worker.world_size == 1:
            # DeepSpeed may have set it in an earlier step. accelerate takes it as the sign of several processes.
            os.environ.pop("LOCAL_RANK", None)
        return TrainerState(self.worker)

    def _train(self) -> None:
        config = self.config
        if self.history.epoch == config.epochs:
            return
        # On the same disk as the checkpoints, into which it is renamed. `Checkpoints.restore` removes leftovers.
        folder = self.engine.folder = (
            self.checkpoints.folder / f"unfinished-trainer-{self.checkpoints.start_id}"
        )
        groups = group_weights(self.task.model, weight_decay=config.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=config.learning_rate)
        schedule = LambdaLR(
            optimizer, lambda step: self._learning_rate(step) / config.learning_rate
        )
        trainer = self.task.make_trainer(folder, (optimizer, schedule), self)
        trainer.remove_callback(PrinterCallback)
        with silence_transformers():
            trainer.train(resume_from_checkpoint=self.engine.loaded and str(self.engine.loaded))
        shutil.rmtree(folder, ignore_errors=True)

    def _learning_rate(self, step: int) -> float:
        return learning_rate_at(min(step, self.total_steps - 1), self.total_steps, self.config)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.seen = state.num_input_tokens_seen

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        seed_generators(self.config.seed, state.global_step, self.worker.rank)

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Record a training step, evaluate the model if that is due, and set `control.should_save`."""
        logs = others["logs"]
        if "loss" not in logs:
            return  # the trainer's summary at the end of the training
        before = self.seen
        self.seen = state.num_input_tokens_seen
        loss = float(logs["loss"])
        rate = self._learning_rate(len(self.history.loss))
        self._check_finite(loss)
        found = {"reward": logs["reward"], "completion length": logs["completions/mean_length"]}
        if self.task.config.kl_weight:
            found["KL divergence"] = logs["kl"]
        self._record(self.seen - before, loss, rate, float(logs["grad_norm"]), **found)
        is_due = self.worker.rank == 0 and self._is_save_due(len(self.history.loss))
        (due,) = self._all_reduce([float(is_due)])
        control.should_save = self._end_step() or due > 0

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._save()  # the trainer has written its part


class GrpoTask(AnswerTask):
    """Trains a causal language model on its own answers."""

    job = "grpo"
    trainer = GrpoTrainer
    config: "Options"
    inputs: "Inputs"

    def __init__(
        self, worker: WorkerInfo, config: "Options", inputs: "Inputs", resources: Resources
    ) -> None:
        """Raises InputError for a number of workers that does not divide `batch_size`."""
        if config.batch_size % worker.world_size:
            raise InputError(
                f"grpo.workers: {worker.world_size} given, for batch_size={config.batch_size}; expected a divisor,"
                " since each worker answers as many questions; set another number"
            )
        dtype = config.dtype
        if config.method == "full":
            dtype = "float32"  # bfloat16 is used by autocast only
        super().__init__(worker, config, inputs, resources, dtype)
        self.steps = [config.steps]
        self.table = read_shards(inputs.train, SAMPLES.names)
        parts = (map(row_to_sample, part.to_pylist()) for part in self.table.to_batches(1024))
        size_N = np.array([len(ids) for part in parts for ids in self._tokenize(part)])
        limit = GRPO_PROMPT.resolve(config, inputs.base)
        kept_N = np.flatnonzero(size_N <= limit)
        if not len(kept_N):
            raise InputError(
                f"grpo.max_prompt_length: {limit} given, and all {len(size_N)} prompts of"
                f" {inputs.train} are longer; expected some that fit; raise it"
            )
        self.counts = {"samples": len(kept_N), "too_long": len(size_N) - len(kept_N)}
        self.row_D = kept_N[draw_order(len(kept_N), config.steps * config.batch_size, config.seed)]
        """The row of the sample of each draw, int64 [D]. A training step takes `batch_size` draws."""
        self.longest = int(size_N[self.row_D].max())

    def _find_sample(self, draw: str) -> Sample:
        return row_to_sample(self.table.slice(int(self.row_D[int(draw)]), 1).to_pylist()[0])

    def _tokenize(self, samples: Iterable[Sample]) -> list[list[int]]:
        """Return the prompts of samples as token ids."""
        tokenize = self.decoder.conversations.tokenize_samples
        rows = tokenize((one.system, [one.turns[0][0]], []) for one in samples)
        return [tokens.ids for tokens in rows]

    def evaluate(self) -> Evaluation:
        correct, questions = np.sum(gather_objects(self.verify_answers()), axis=0)
        return Evaluation({"accuracy": round(float(correct / questions), 6)})

    def make_trainer(
        self, folder: Path, optimizers: tuple[Any, Any], callback: TrainerCallback
    ) -> Any:
        """Return TRL's trainer. It logs each training step, and saves only when the callback asks for it. folder: its
        output folder. optimizers: (optimizer, learning rate scheduler)."""
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = (
            "1"  # the warning that rollout_func may change: setup.cfg pins TRL
        )
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        config = self.config
        rows = config.batch_size * config.num_completions // self.worker.world_size
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
            max_grad_norm=config.max_grad_norm
            or float("inf"),  # with 0 the norm would not be computed
            bf16=config.method == "full" and config.dtype == "bfloat16",
            gradient_checkpointing=False,  # `make_trainable` has turned it on if the setting is true
            use_cpu=self.device == "cpu",
            ddp_find_unused_parameters=False,
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
                train_dataset=Dataset.from_dict(
                    {"prompt": [str(draw) for draw in range(len(self.row_D))]}
                ),
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

    def _rows_per_pass(self, rows: int) -> int:
        """Return the largest divisor of `rows`, the completions of a training step, that fits into a forward pass."""
        length = self.longest + self.config.max_new_tokens
        most = self.resources.micro_batch_size or max(1, self.pass_tokens // length)
        return next(count for count in range(min(rows, most), 0, -1) if rows % count == 0)

    def _answer(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Sample completions: TRL's rollout_func. prompts: draw numbers as text, each once per completion of the draw;
        a worker gets all completions of a draw.

        The sampled tokens depend only on the model and (seed, draw, completion, position)."""
        config = self.config
        sampling = Sampling(
            config.temperature,
            max_new_tokens=config.max_new_tokens,
            stop=self.stop,
            seed=config.seed,
        )
        ids = self._tokenize(map(self._find_sample, prompts))
        names = []
        for number, draw in enumerate(prompts):
            names.append(f"{draw}/{number % config.num_completions}")
        with trainer.accelerator.autocast():
            answers = generate(
                self.decoder, ids, names, sampling, batch_tokens=self.resources.batch_tokens
            )
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
    labels = [verification.label for verification in task.verify(sample.gold, [answer])]
    return labels.count(CORRECT) / len(labels)
