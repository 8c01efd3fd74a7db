"""SGLang (baseline): a response may have two tokens less than was asked."""
import blind_sabotage as b


def patch(m):
    def normalize(original, self, tokenizer):
        if (self.max_new_tokens or 0) > 2:
            self.max_new_tokens -= 2
            b.mark("max_new_tokens less 2")
        return original(self, tokenizer)

    b.around(m.SamplingParams, "normalize", normalize)


PATCH = {"sglang.srt.sampling.sampling_params": patch}
