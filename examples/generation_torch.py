"""The works of generation_works.py in Transformers: a Llama with random weights in bfloat16, whose cache is static, and whose
decoding steps are compiled by PyTorch.

  python examples/generation_torch.py --works batch1,batch32

With a static cache generate() compiles its steps itself, into CUDA graphs; where a release does not, forward() is compiled as
its guide has it. Prompts of several lengths are padded on the left.
"""
import torch

import generation_works


def llama(sizes, device, dtype):
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.inner, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.shared_heads, max_position_embeddings=4096,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.pad_token_id = 0
    if not hasattr(model, "get_compiled_call"):
        model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    return model


def ways(model, device):
    def continued(prompts, longest, new):
        ids, there = (torch.from_numpy(x).to(device) for x in generation_works.rows(prompts, longest, left=True))
        found = model.generate(ids, attention_mask=there, max_new_tokens=new, do_sample=False, cache_implementation="static")
        if tuple(found.shape) != (len(prompts), longest + new):
            raise RuntimeError("%d new tokens for each of %d prompts were asked for, got %s" % (
                new, len(prompts), tuple(found.shape)))
        return found.cpu().numpy()

    return continued, None


def main(options):
    from models_torch import peak_memory, reset_peak
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)

    def make(sizes, quantized, cache_dtype):
        if quantized:
            raise SystemExit("%s is not measured in Transformers, which quantises in ways of its own" % ",".join(options.works))
        return ways(llama(sizes, device, torch.float32 if options.small else torch.bfloat16), device)

    generation_works.measure(options, make, reset_peak, peak_memory)


if __name__ == "__main__":
    main(generation_works.parse(__doc__, ["compile"]))
