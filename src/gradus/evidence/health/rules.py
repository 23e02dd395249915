"""The rules as records. A new rule is one function and one entry here.

Thresholds are those of the design if it gives one; the others are said in docs/doctor.md with their false-alarm rate.
Means over a few steps are compared, not single steps, unless a single step is the fault.
"""

from __future__ import annotations

from collections.abc import Callable

from gradus.core.findings import Finding
from gradus.core.frozen_record import frozen_record
from gradus.evidence.health import engine_rules, held_out_rules, learning_rules, share_rules
from gradus.evidence.health.history import Fired, History


@frozen_record
class Rule:
    """``check`` looks at the history up to a step, and says how bad it is, with the evidence. ``kind`` names the records it reads."""

    name: str
    summary: str
    remedy: str
    check: Callable[[History], Fired]
    kind: str = "step"

    def look(self, history: History) -> Finding | None:
        """Returns what the rule finds in a history; None if it does not fire."""
        fired = self.check(history)
        if fired is None:
            return None
        status, evidence = fired
        return Finding(status=status, subject=self.name, evidence=evidence, remedy=self.remedy)


_AUDIT_THE_GRADER = (
    "Stop and audit the grader (`gradus audit ENV --grader NAME`); read the episodes with the highest rewards."
)
_SLOW = (
    "See what else works on this machine (`top`, `nvidia-smi`) and whether it swaps (`free`): end it, or leave it a core "
    "(OMP_NUM_THREADS), or take less memory (`--memory`). If one part alone is slow, look at what it waits for: a server, a tool, a judge."
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="law broken",
        summary="two computations of one thing differ by more than rounding",
        remedy="Look at the place that it names: what the run computes there is wrong, and so is all that was trained since.",
        check=engine_rules.law_broken,
        kind="alert",
    ),
    Rule(
        name="logp diff",
        summary="sampler and trainer disagree about log-probabilities before the first update",
        remedy="This is a bug, not a setting: the ratios of the loss are wrong. Check that temperature, top-k and the "
        "grammar are the same on both sides and that the model is in evaluation mode while it samples.",
        check=engine_rules.logp_diff_max,
    ),
    *(
        Rule(
            name="not a number",
            summary="the loss or the gradient is not finite",
            remedy="Restore the last checkpoint, halve the learning rate, and look at the precision (bf16 rather than fp16).",
            check=engine_rules.not_a_number,
            kind=kind,
        )
        for kind in ("step", "sft", "distill")
    ),
    Rule(
        name="gradient spike",
        summary="a gradient norm above ten times the running median",
        remedy="Lower the learning rate, or grad_clip. After three within 50 steps begin again from the best checkpoint.",
        check=engine_rules.gradient_spike,
    ),
    Rule(
        name="KL explosion",
        summary="the policy runs away from its reference",
        remedy="Halve the learning rate, or raise kl_coef.",
        check=engine_rules.kl_explosion,
    ),
    Rule(
        name="sampler mismatch",
        summary="the sampler is far from the policy that is trained",
        remedy="The sampler has the newest weights and still gives other log-probs: check that temperature, top_k, the chat template and the precision are "
        "the trainer's, and that vLLM runs with `--logprobs-mode processed_logprobs`.",
        check=engine_rules.sampler_mismatch,
    ),
    Rule(
        name="clip storm",
        summary="more than a fifth of the action tokens is clipped",
        remedy="Take fewer passes over each batch, or lower the learning rate.",
        check=engine_rules.clip_storm,
    ),
    Rule(
        name="hack suspected",
        summary="the reward rises while the true reward falls",
        remedy=_AUDIT_THE_GRADER,
        check=learning_rules.hack_suspected,
    ),
    Rule(
        name="hack suspected",
        summary="on the same held-out tasks the reward has risen and the true reward fallen",
        remedy=_AUDIT_THE_GRADER,
        check=held_out_rules.hack_on_validation,
        kind="validation",
    ),
    Rule(
        name="worse on held-out tasks",
        summary="on the same held-out tasks the student is below where it began",
        remedy="Use the checkpoint from before (`best` is kept), lower the learning rate, and train for more steps if this is a --quick run.",
        check=held_out_rules.worse_on_validation,
        kind="validation",
    ),
    Rule(
        name="worse in the evaluation",
        summary="the trained student is below the student before GRPO",
        remedy="Use the model from before GRPO; lower the learning rate, take larger groups, or train for more steps if this is a --quick run.",
        check=held_out_rules.worse_in_evaluation,
        kind="evaluation",
    ),
    Rule(
        name="no gradient",
        summary="groups differ in reward, and no token has an advantage",
        remedy="If the learning rate is 0, look at lr and its schedule. If the algorithm is your own, print what its advantage returns: it must differ "
        "within a group. Else look at clip and loss.",
        check=engine_rules.no_gradient,
    ),
    Rule(
        name="old weights",
        summary="the sampler agreed with the trainer at first and no longer does",
        remedy="The sampler does not get new weights, or gets them late: look at what pushes them, and whether its adapters are loaded anew.",
        check=engine_rules.old_weights,
    ),
    Rule(
        name="no gain by GRPO",
        summary="the evaluation does not tell the trained student from the one before GRPO",
        remedy="Look at the share of zero-variance groups first: easier or harder tasks, or larger groups. Then a higher learning rate or more steps. "
        "More tasks (eval.episodes) make the interval narrower.",
        check=held_out_rules.no_gain,
        kind="evaluation",
    ),
    Rule(
        name="far below its teacher",
        summary="the trained student earns much less than the policy that taught it",
        remedy="Teach longer before GRPO: more of the teacher's episodes (teach.episodes), more steps (sft.max_steps), or a [distill] stage.",
        check=held_out_rules.far_below_teacher,
        kind="evaluation",
    ),
    Rule(
        name="zero-variance groups",
        summary="groups whose members all get the same reward teach nothing",
        remedy="If the tasks are solved, bring harder ones. Else read a group with `gradus show RUN --last`. If its members say the same, raise the "
        "temperature. If they differ, look at the reward, or use larger groups, easier tasks, or dynamic sampling.",
        check=share_rules.zero_variance_groups,
    ),
    Rule(
        name="collapse to one answer",
        summary="less and less variety, and nothing gained by it",
        remedy="Lower the learning rate, add an entropy bonus, or warm-start with more varied examples.",
        check=learning_rules.collapse,
    ),
    Rule(
        name="one short answer",
        summary="episodes shrink to the same short answer",
        remedy="Read the newest episodes with `gradus show RUN --last`; reward what is asked for, add an entropy bonus, or warm-start longer.",
        check=learning_rules.short_answers,
    ),
    Rule(
        name="template collapse",
        summary="answers no longer depend on what was asked",
        remedy="Lower the learning rate, add an entropy bonus, or warm-start with more varied examples; read a few episodes.",
        check=learning_rules.template_collapse,
    ),
    Rule(
        name="format ignored",
        summary="answers that cannot be understood",
        remedy="Warm-start longer (`gradus sft`), give the format more weight, or sample under the grammar if the environment declares one.",
        check=share_rules.format_ignored,
    ),
    Rule(
        name="calls not understood",
        summary="calls of tools that cannot be read, or that no tool takes",
        remedy="Warm-start longer on a teacher's calls, lower what such calls earn (`call.fault`), or say in the tools' docstrings what they take.",
        check=share_rules.calls_not_understood,
    ),
    Rule(
        name="failing tools",
        summary="most calls end in an error",
        remedy="Read a few episodes with `gradus show`: a tool is broken, or the task cannot be done with these tools.",
        check=share_rules.failing_tools,
    ),
    Rule(
        name="truncation",
        summary="episodes hit a budget before they end",
        remedy="Raise the token or turn budget, or shape the length (overlong shaping). A turn limit that is a rule of the task needs no change.",
        check=share_rules.truncation,
    ),
    Rule(
        name="failing episodes",
        summary="episodes end in an error and teach nothing",
        remedy="Read the failures with `gradus show`; the environment, the grader or the context length is at fault.",
        check=share_rules.failing_episodes,
    ),
    Rule(
        name="broken episodes",
        summary="the agent or the environment raises behind the model's answers",
        remedy="Read them with `gradus show`. They get failed_reward, so the model learns to avoid them; catch errors that it cannot help.",
        check=share_rules.broken_episodes,
    ),
    Rule(
        name="missing rewards",
        summary="episodes get no reward and teach nothing",
        remedy="Fix the reward function, or leave out the rows that it does not apply to; `gradus rewards try` runs it on stored episodes.",
        check=share_rules.ungraded_episodes,
    ),
    Rule(
        name="length drift",
        summary="answers grow longer and the reward does not",
        remedy="Use overlong shaping and a token-level loss (dapo or dr_grpo), which do not reward length.",
        check=learning_rules.length_drift,
    ),
    Rule(
        name="reward stuck",
        summary="no trend in the reward for 50 steps although groups have variance",
        remedy="Check the reward on a few episodes by hand, then raise the learning rate or the size of the groups.",
        check=learning_rules.reward_stuck,
    ),
    Rule(
        name="reward falls",
        summary="the training reward falls far below where it was",
        remedy="Go back to the checkpoint from before the fall (`best` is kept if the run validates), lower the learning rate, or raise kl_coef; "
        "read the newest episodes with `gradus show RUN --last`.",
        check=learning_rules.reward_falls,
    ),
    Rule(
        name="component dominance",
        summary="one component decides the reward alone",
        remedy="Weigh the components anew, or scale each on its own (gdpo).",
        check=learning_rules.component_dominance,
    ),
    Rule(
        name="overfitting",
        summary="the loss on held-out examples rises while training goes on",
        remedy="Stop SFT earlier (the best checkpoint is kept), or collect more examples.",
        check=held_out_rules.overfitting,
        kind="sft",
    ),
    *(
        Rule(
            name="slow training",
            summary="far fewer tokens per second than the run had before",
            remedy=_SLOW,
            check=engine_rules.slow_training,
            kind=kind,
        )
        for kind in ("step", "sft", "distill")
    ),
    Rule(
        name="loss near zero",
        summary="what a GRPO loss of 0.0000 means",
        remedy="Nothing to do: advantages sum to about zero, so an on-policy loss is near zero by construction. Watch the "
        "reward, its spread and the KL instead.",
        check=engine_rules.loss_near_zero,
    ),
)
