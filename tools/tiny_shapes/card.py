"""The model card of the drawing model, from what was measured."""

from statistics import fmean
from typing import Any

from giornata.diffusion.shapes.pictures import FORMS, HELD_OUT, PALETTE
from tools.tiny_shapes.scoring import LEAST_IOU
from tools.tiny_shapes.stage import StagePlan


def model_card(plan: StagePlan, scores: dict[str, Any], *, weights_bytes: int) -> str:
    """README.md of the model's folder. `scores` are those of tools.tiny_shapes.evaluate."""
    return "\n".join([*_head(plan, weights_bytes), *_score_lines(scores), *_form_lines(scores), *_limits()]) + "\n"


def _head(plan: StagePlan, weights_bytes: int) -> list[str]:
    held_out = ", ".join(f"{color} {form}" for form, color in HELD_OUT.items())
    return [
        "---",
        "license: apache-2.0",
        "library_name: diffusers",
        "pipeline_tag: text-to-image",
        "---",
        "# A tiny SDXL that draws shapes",
        "",
        f"An SDXL of {weights_bytes / 1e6:.2f} MB (float16) for tests and demonstrations of fine-tuning: it draws",
        "64 x 64 pictures of one shape in one color on one background, as its prompt says, for instance",
        "`a red star on a white background`. `StableDiffusionXLPipeline.from_pretrained` loads it as it is.",
        "",
        f"- Forms: {', '.join(FORMS)}. Colors: {', '.join(PALETTE)}. Backgrounds: white, gray, black, brown.",
        f"- Never seen in training, to show that words are combined: {held_out}.",
        "- What is left out of a prompt (`a shape`, `a red shape`, `a circle`) is chosen by chance.",
        "",
        "## How it was made",
        "",
        "By `make tiny-shapes` (`python -m tools.tiny_shapes.pretrain`) on two cores of a CPU, from pictures",
        "that the code draws itself; there is no other data. No weights of another model were used. The result is a",
        "function of the numbers below, on one kind of processor and with one set of library versions.",
        "",
        f"- VAE (trained): {plan.vae_steps} steps of {plan.processes} x {plan.vae_batch} pictures, half of them",
        "  shapes, half random compositions.",
        "- Text encoders (not trained): random functions of their tokens.",
        f"- UNet (trained): {plan.unet_steps} steps of {plan.processes} x {plan.unet_batch} of {plan.pictures}",
        f"  captioned pictures, velocity prediction, average of the weights. Seed {plan.seed}.",
        "",
    ]


def _score_lines(scores: dict[str, Any]) -> list[str]:
    lines = [
        "## Scores",
        "",
        "The scorer has no learned part: form by the overlap with a template (intersection over union of at least",
        f"{LEAST_IOU:g}), color and background by the nearest named color. Measured on these very files, Euler,",
        f"{scores['steps']} steps, guidance {scores['guidance']:g}.",
        "",
        "| pictures | n | form | color | background | all three | mean IoU |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {
        "grid": "whole grid",
        "trained": "pairs that were trained",
        "held_out": "pairs that were held out",
        "shuffled": "control: shuffled prompts",
    }
    for one in scores["seeds"]:
        lines += [_row(f"seed {one['seed']}: {title}", one[name]) for name, title in names.items()]
    return [*lines, _row("ceiling: drawn pictures through the VAE", scores["ceiling"]["grid"]), ""]


def _row(title: str, counts: dict[str, Any]) -> str:
    shares = " | ".join(f"{counts[name]:.3f}" for name in ("form", "color", "background", "all", "mean_iou"))
    return f"| {title} | {counts['count']} | {shares} |"


def _form_lines(scores: dict[str, Any]) -> list[str]:
    lines = [
        f"All three right by form, over all seeds (the VAE keeps pictures at {scores['ceiling']['psnr_db']:.1f} dB):",
        "",
        "| form | all three | mean IoU | ceiling: all three | ceiling: mean IoU |",
        "|---|---|---|---|---|",
    ]
    for form in FORMS:
        drawn = [one["forms"][form] for one in scores["seeds"]]
        most = scores["ceiling"]["forms"][form]
        lines.append(
            f"| {form} | {fmean(one['all'] for one in drawn):.3f} | {fmean(one['mean_iou'] for one in drawn):.3f} "
            f"| {most['all']:.3f} | {most['mean_iou']:.3f} |"
        )
    return [*lines, ""]


def _limits() -> list[str]:
    return [
        "## Limits",
        "",
        "It knows these words and no others, and 64 x 64 pixels. Edges are soft: a latent stands for 8 x 8 pixels.",
        "It shows whether a trainer learns and what it forgets; it says nothing about the looks of a full SDXL.",
        "",
        "## License",
        "",
        "Apache-2.0, as the repository's.",
    ]
