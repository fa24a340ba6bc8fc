module @tessera {
  func.func public @main(%arg0: tensor<8x4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<2x3x4xf32>) -> (tensor<2x3x8xf32>) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [2] x [1] : (tensor<2x3x4xf32>, tensor<8x4xf32>) -> tensor<2x3x8xf32> loc(#loc1)
    %1 = "stablehlo.all_reduce"(%0) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<2x3x8xf32>) -> tensor<2x3x8xf32> loc(#loc2)
    %2 = "stablehlo.collective_permute"(%1) {source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>} : (tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
    %3 = stablehlo.constant dense<"0x0000803F"> : tensor<1xf32> loc(#loc3)
    return %2 : tensor<2x3x8xf32>
  }
} loc("denoiser"("Model"))
#loc1 = loc("linear blocks.0.attn.to_q"("block 0":1:0))
#loc2 = loc("collective.all_reduce tp"("program":2:0))
#loc3 = loc("constant"("program":0:0))
