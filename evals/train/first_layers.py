"""Makes a draft model of a model's own layers: the first N, the final norm and the output head.

    first_layers.py MODEL.gguf OUT.gguf LAYERS          LAYERS: 4 for the first four; 0,1,2,29 for these

Weights are copied as they are, so it takes a second and no training, for every architecture whose layers are tensors `blk.N`.
Few layers of a model predict it badly before they are trained to (`distil.py --start OUT.gguf --fixed`, then export.py)."""

import re

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from files import arguments
from upcycle import copy_fields


def cut(path, out, chosen):
    """Writes the model of layers `chosen`, in this order."""
    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    n_layer = reader.fields[f"{arch}.block_count"].contents()
    if not chosen or not all(0 <= i < n_layer for i in chosen):
        raise SystemExit(f"{path} has layers 0 to {n_layer - 1}: they cannot be {chosen}")
    writer = GGUFWriter(out, arch)
    replaced = {name: [f.contents()[i] for i in chosen] for name, f in reader.fields.items()    # values of each layer
                if name.startswith(f"{arch}.") and f.types[0] == GGUFValueType.ARRAY and len(f.contents()) == n_layer}
    copy_fields(writer, reader.fields, replaced | {f"{arch}.block_count": len(chosen)})
    for t in reader.tensors:
        layer = re.match(r"blk\.(\d+)\.", t.name)
        names = [t.name] if not layer else [f"blk.{at}.{t.name[layer.end():]}" for at, i in enumerate(chosen)
                                            if i == int(layer[1])]
        for name in names:
            writer.add_tensor(name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    p = arguments(__doc__)
    for name in ("model", "out", "layers"):
        p.add_argument(name)
    a = p.parse_args()
    cut(a.model, a.out, [int(i) for i in a.layers.split(",")] if "," in a.layers else list(range(int(a.layers))))


if __name__ == "__main__":
    main()
