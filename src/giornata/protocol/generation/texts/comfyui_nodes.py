"""The plain nodes of ComfyUI that a picture's workflow is made of, and a workflow in both of its JSON forms.

`prompt` is the form of ComfyUI's API: inputs by name. `workflow` is the form of its editor: slots, links, positions
and values in the order of the widgets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

COLUMN_PX = 380
NODE_SIZE_PX = (340, 180)
EDITOR_VERSION = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Slots and widgets of a node, in ComfyUI's order. `hidden` are values of the editor that the API has not,
    by the widget before them.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    widgets: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)


_FIXED = {"seed": "fixed"}
NODE_TYPES: Mapping[str, NodeType] = MappingProxyType(
    {
        "CheckpointLoaderSimple": NodeType(widgets=("ckpt_name",), outputs=("MODEL", "CLIP", "VAE")),
        "VAELoader": NodeType(widgets=("vae_name",), outputs=("VAE",)),
        "LoraLoader": NodeType(
            inputs={"model": "MODEL", "clip": "CLIP"},
            widgets=("lora_name", "strength_model", "strength_clip"),
            outputs=("MODEL", "CLIP"),
        ),
        "CLIPSetLastLayer": NodeType(inputs={"clip": "CLIP"}, widgets=("stop_at_clip_layer",), outputs=("CLIP",)),
        "CLIPTextEncode": NodeType(inputs={"clip": "CLIP"}, widgets=("text",), outputs=("CONDITIONING",)),
        "ControlNetLoader": NodeType(widgets=("control_net_name",), outputs=("CONTROL_NET",)),
        "ControlNetApplyAdvanced": NodeType(
            inputs={
                "positive": "CONDITIONING",
                "negative": "CONDITIONING",
                "control_net": "CONTROL_NET",
                "image": "IMAGE",
            },
            widgets=("strength", "start_percent", "end_percent"),
            outputs=("CONDITIONING", "CONDITIONING"),
        ),
        "EmptyLatentImage": NodeType(widgets=("width", "height", "batch_size"), outputs=("LATENT",)),
        "LoadImage": NodeType(widgets=("image",), outputs=("IMAGE", "MASK"), hidden={"image": "image"}),
        "LoadImageMask": NodeType(widgets=("image", "channel"), outputs=("MASK",), hidden={"channel": "image"}),
        "VAEEncode": NodeType(inputs={"pixels": "IMAGE", "vae": "VAE"}, outputs=("LATENT",)),
        "SetLatentNoiseMask": NodeType(inputs={"samples": "LATENT", "mask": "MASK"}, outputs=("LATENT",)),
        "LatentUpscale": NodeType(
            inputs={"samples": "LATENT"}, widgets=("upscale_method", "width", "height", "crop"), outputs=("LATENT",)
        ),
        "KSampler": NodeType(
            inputs={
                "model": "MODEL",
                "positive": "CONDITIONING",
                "negative": "CONDITIONING",
                "latent_image": "LATENT",
            },
            widgets=("seed", "steps", "cfg", "sampler_name", "scheduler", "denoise"),
            outputs=("LATENT",),
            hidden=_FIXED,
        ),
        "KSamplerAdvanced": NodeType(
            inputs={
                "model": "MODEL",
                "positive": "CONDITIONING",
                "negative": "CONDITIONING",
                "latent_image": "LATENT",
            },
            widgets=(
                *("add_noise", "noise_seed", "steps", "cfg", "sampler_name", "scheduler"),
                *("start_at_step", "end_at_step", "return_with_leftover_noise"),
            ),
            outputs=("LATENT",),
            hidden={"noise_seed": "fixed"},
        ),
        "VAEDecode": NodeType(inputs={"samples": "LATENT", "vae": "VAE"}, outputs=("IMAGE",)),
        "SaveImage": NodeType(inputs={"images": "IMAGE"}, widgets=("filename_prefix",)),
    }
)


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """An output of a node of the workflow: the node's number, and the place among its outputs."""

    node: int
    slot: int = 0


@dataclass(slots=True)
class ComfyWorkflow:
    """A graph of nodes that grows from the models to the saved picture."""

    nodes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def add(self, type_name: str, **values: Any) -> NodeOutput:
        """Add a node and return its first output. A value is an output of an earlier node, or that of a widget."""
        self.nodes.append((type_name, values))
        return NodeOutput(len(self.nodes))

    def as_prompt(self) -> dict[str, Any]:
        """Return the form of ComfyUI's API."""
        return {
            str(number): {
                "class_type": name,
                "inputs": {
                    key: [str(value.node), value.slot] if isinstance(value, NodeOutput) else value
                    for key, value in values.items()
                },
            }
            for number, (name, values) in enumerate(self.nodes, start=1)
        }

    def as_workflow(self) -> dict[str, Any]:
        """Return the form of ComfyUI's editor."""
        links: list[list[Any]] = []
        nodes = [self._node(number, links) for number in range(1, len(self.nodes) + 1)]
        for link_id, source, slot, *_ in links:
            nodes[source - 1]["outputs"][slot]["links"].append(link_id)
        return {
            "last_node_id": len(nodes),
            "last_link_id": len(links),
            "nodes": nodes,
            "links": links,
            "groups": [],
            "config": {},
            "extra": {},
            "version": EDITOR_VERSION,
        }

    def _node(self, number: int, links: list[list[Any]]) -> dict[str, Any]:
        name, values = self.nodes[number - 1]
        kind = NODE_TYPES[name]
        inputs = []
        for place, (key, type_name) in enumerate(kind.inputs.items()):
            source = values[key]
            links.append([len(links) + 1, source.node, source.slot, number, place, type_name])
            inputs.append({"name": key, "type": type_name, "link": len(links)})
        widgets = []
        for key in kind.widgets:
            widgets += [values[key], *([kind.hidden[key]] if key in kind.hidden else [])]
        return {
            "id": number,
            "type": name,
            "pos": [COLUMN_PX * (number - 1), 0],
            "size": list(NODE_SIZE_PX),
            "flags": {},
            "order": number - 1,
            "mode": 0,
            "inputs": inputs,
            "outputs": [
                {"name": each, "type": each, "links": [], "slot_index": slot}
                for slot, each in enumerate(kind.outputs)
            ],
            "properties": {"Node name for S&R": name},
            "widgets_values": widgets,
        }
