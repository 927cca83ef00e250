"""Which requests run in a step: the scheduler and its policies."""

from octavo.engine.schedule.budget import StepBudget
from octavo.engine.schedule.plan import RowWork, StepPlan
from octavo.engine.schedule.policy import make_policy
from octavo.engine.schedule.scheduler import Scheduler

__all__ = ["RowWork", "Scheduler", "StepBudget", "StepPlan", "make_policy"]
