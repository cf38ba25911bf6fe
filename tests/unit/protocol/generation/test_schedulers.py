"""Names of schedulers in the spellings of A1111, ComfyUI and diffusers."""

import pytest

from giornata.protocol.generation.schedulers import NOT_OFFERED, all_schedulers, canonical_scheduler


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("Euler a", "euler_ancestral"),
        ("DPM++ 2M Karras", "dpmpp_2m_karras"),
        ("DPM++ 2M SDE Exponential", "dpmpp_2m_sde_exponential"),
        ("DPM2 a Karras", "dpm_2_ancestral_karras"),
        ("PLMS", "pndm"),
        ("LMS", "lms"),
        ("LMS Karras", "lms_karras"),
        ("DPM++ 2M Beta", "dpmpp_2m_beta"),
        ("LMSDiscreteScheduler", "lms"),
        ("UniPC", "uni_pc"),
        ("Euler SGM Uniform", "euler_sgm_uniform"),
        ("DPM++ 2M Automatic", "dpmpp_2m"),
        ("dpmpp_2m/karras", "dpmpp_2m_karras"),
        ("dpmpp_2m + karras", "dpmpp_2m_karras"),
        ("dpmpp_sde_gpu karras", "dpmpp_sde_karras"),
        ("euler_ancestral normal", "euler_ancestral"),
        ("euler simple", "euler_sgm_uniform"),
        ("DPMSolverMultistepScheduler", "dpmpp_2m"),
        ("EulerAncestralDiscreteScheduler", "euler_ancestral"),
        ("  DDIM ", "ddim"),
    ],
)
def test_foreign_spelling_means_a_canonical_name(spelled: str, name: str) -> None:
    assert canonical_scheduler(spelled) == name


def test_canonical_name_and_each_pair_of_foreign_names_mean_the_scheduler() -> None:
    for name, scheduler in all_schedulers().items():
        assert canonical_scheduler(name) == name
        if scheduler.a1111[0]:
            assert canonical_scheduler(" ".join(scheduler.a1111)) == name


def test_unknown_scheduler_is_told_with_near_names() -> None:
    with pytest.raises(ValueError, match="near names are dpmpp_2m"):
        canonical_scheduler("dpmp_2m")
    with pytest.raises(ValueError, match="samplers are euler, "):
        canonical_scheduler("?")


@pytest.mark.parametrize(
    "spelled", ["Restart", "Restart Karras", "Euler KL Optimal", "DPM++ 2S a Karras", "DPM adaptive"]
)
def test_scheduler_that_is_not_offered_is_told_with_another(spelled: str) -> None:
    with pytest.raises(ValueError, match=r"is not offered: .*(use|dpmpp)"):
        canonical_scheduler(spelled)


def test_scheduler_that_is_not_offered_is_in_no_list() -> None:
    assert set(NOT_OFFERED).isdisjoint(all_schedulers())
