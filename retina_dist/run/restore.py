"""Restore a run from its checkpoint."""

from __future__ import annotations

import logging
from dataclasses import asdict

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.best import BestMetric
from retina_dist.engine.plan import Plan
from retina_dist.engine.state import TrainState
from retina_dist.errors import CheckpointError, UserError
from retina_dist.run.folder import Run, changed_settings
from retina_dist.task import Task, TaskData
from retina_dist.torch_files import remedy_of

logger = logging.getLogger(__name__)


def restore(state: TrainState, run: Run, config: RunConfig, task: Task, data: TaskData, plan: Plan) -> bool:
    """Load the checkpoint of `run`, if it has one, into `state`; return whether the plan is already done.

    Raises CheckpointError when the checkpoint is of other data, lacks something, or has it in another form.
    """
    if run.checkpoint is None:
        return False
    try:
        _check_data(run, config, task, data)
        state.load_state_dict(run.checkpoint)
        _log_changes(run, config, state.best)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0][:160]}"
        raise CheckpointError(
            f"{run.resumed_from} does not hold what a run of these settings needs ({reason}); "
            f"{remedy_of(run.checkpoint, 'resume from another checkpoint')}."
        ) from error
    logger.info(f"resumed from {run.resumed_from}, step {state.step}")
    if plan.validates_at(state.step) and state.last_eval_step < state.step:
        return False
    if state.best.exhausted:
        logger.info(f"nothing to do: {state.best.describe_stop()} Raise trainer.patience to train on.")
        return True
    if state.step >= plan.stop_step:
        logger.info(
            f"nothing to do up to step {plan.stop_step}; raise trainer.max_duration or trainer.stop_after to train on."
        )
        return True
    return False


def _check_data(run: Run, config: RunConfig, task: Task, data: TaskData) -> None:
    """Raise CheckpointError unless step n of this run has the examples of step n of the checkpoint's run."""
    assert run.checkpoint is not None
    sampler = run.checkpoint["sampler"]
    same_position = data.position(run.checkpoint["step"]) == (sampler["epoch"], sampler["cursor"])
    if run.checkpoint.get("images") != task.fingerprint() or not same_position:
        raise CheckpointError(
            f"{run.resumed_from} was trained on other images than the {task.num_images} of data={config.data.name}; "
            f"resume with the same data, or start a new run with model.weights={run.resumed_from}."
        )


def _log_changes(run: Run, config: RunConfig, now: BestMetric) -> None:
    """Log each setting that differs from the checkpoint's, and whether the best value starts anew."""
    assert run.checkpoint is not None
    before = run.checkpoint["best"]
    if before["value"] is not None and not now.same_metric(before):
        logger.warning(
            f"best was the {BestMetric(before['name'], before['mode'])} up to here and is the {now} from now on: it "
            f"starts anew, and best.pt with it; to keep it, resume with trainer.monitor={before['name']} "
            f"trainer.monitor_mode={before['mode']}."
        )
    for change in changed_settings(run.checkpoint["config"], asdict(config)):
        logger.info(f"changed since the checkpoint: {change}")
