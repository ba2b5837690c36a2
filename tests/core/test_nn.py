"""The layer's convolution over packed documents: cut anywhere, or alone, a document gives the same."""

import pytest
import torch

from softmax_rnn.nn import Attention


def layer_and_input(T):
    torch.manual_seed(0)
    layer = Attention(8, 2, "taylor2", conv=4).double()
    torch.nn.init.normal_(layer.conv.weight)
    return layer, torch.randn(1, T, 8, dtype=torch.float64)


@pytest.mark.parametrize("cut", range(8))
def test_a_stream_of_documents_may_be_cut_anywhere(cut):
    layer, x = layer_and_input(7)
    ids = torch.tensor([[4, 4, 4, 9, 9, 4, 4]])
    first, state = layer(x[:, :cut], segment_ids=ids[:, :cut], return_state=True)
    second, state = layer(x[:, cut:], segment_ids=ids[:, cut:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat([first, second], 1), layer(x, segment_ids=ids))
    whole = layer(x, segment_ids=ids, return_state=True)[1]
    torch.testing.assert_close(state.tail, whole.tail)


def test_a_document_whose_number_comes_back_is_another():
    layer, x = layer_and_input(5)
    ids = torch.tensor([[1, 0, 1, 1, 0]])
    alone = [layer(x[:, a:b]) for a, b in ((0, 1), (1, 2), (2, 4), (4, 5))]
    torch.testing.assert_close(layer(x, segment_ids=ids), torch.cat(alone, 1))
